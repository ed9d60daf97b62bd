"""Bodies that were broken on the way, by chance or on purpose: each is answered, and the next request is not harmed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine

from pagefall.api.app import create_app
from pagefall.api.decode import parse_body
from pagefall.api.tokens import DetokenizeRequest
from pagefall.config import HttpConfig
from pagefall.errors import RequestError
from pagefall.text.replies.dialects import ReplyFormat, ToolDialect

pytestmark = pytest.mark.anyio

TURN = [{"role": "user", "content": [{"type": "text", "text": "안녕 👋"}]}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1, "x"]}}}}
WHOLE = {
    "/v1/chat/completions": {"model": MODEL, "messages": TURN, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/completions": {"prompt": ["a", "b"], "n": 2, "echo": True, "logit_bias": {"5": -1.5}, "stop": ["x"]},
    "/v1/messages": {"model": MODEL, "max_tokens": 9, "messages": TURN, "stop_sequences": ["x"]},
    "/v1/responses": {"model": MODEL, "input": TURN, "text": {"format": {"type": "text"}}},
    "/tokenize": {"messages": TURN},
    "/detokenize": {"tokens": [1, 2]},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "enum": ["x"]},
        "b": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/c"}]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"c": {"type": "array", "items": {"type": "null"}}},
}
TOOL = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
WITH_SCHEMAS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}],
        "tool_choice": {"type": "any"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "input": "Hi",
        "tools": [{"type": "function", **TOOL}],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    },
}
DIALECTS: tuple[ToolDialect, ...] = ("pythonic", "qwen3-coder")


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"a": value}}
    return value


ODD = [None, [], {}, 5, True, [[]], {"a": 5}, nested(150)]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value within `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def with_odd(body: dict[str, Any], path: tuple[Any, ...], odd: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = odd
    return changed


PATCHES = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 6),
        st.one_of(
            st.binary(max_size=4),
            st.sampled_from(
                [
                    b"null",
                    b"1e400",
                    b"-1",
                    b"[",
                    b"{}",
                    b'"',
                    b"\\ud800",
                    b"\xff",
                    b'"n":',
                    b"[" * 5000,
                    b"9" * 5000,
                    b"true",
                ]
            ),
        ),
    ),
    min_size=1,
    max_size=4,
)


@cache
def transport(replies: ReplyFormat = ReplyFormat()) -> httpx.ASGITransport:  # noqa: B008 - frozen
    """One server for all bodies, which must survive every one of them."""
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(engine.model, replies=replies)
    return httpx.ASGITransport(create_app(engine, HttpConfig()))


def broken(body: bytes, patches: list[tuple[int, int, bytes]]) -> bytes:
    for at, num_dropped, inserted in patches:
        start = at % (len(body) + 1)
        body = body[:start] + inserted + body[start + num_dropped :]
    return body


@given(path=st.sampled_from(sorted(WHOLE)), patches=PATCHES)
@settings(max_examples=300, deadline=None)
async def test_a_broken_body_is_answered_and_harms_no_other(path: str, patches: list[tuple[int, int, bytes]]) -> None:
    async with httpx.AsyncClient(transport=transport(), base_url="http://server") as client:
        response = await client.post(
            path, content=broken(json.dumps(WHOLE[path], ensure_ascii=False).encode(), patches)
        )
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]
        after = await client.post("/v1/completions", json={"prompt": "Hi"})
        assert after.json()["choices"][0]["text"] == "".join(WORDS)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: json.dumps(odd)[:20])
async def test_an_odd_value_anywhere_in_a_body_with_schemas_is_answered(odd: Any) -> None:
    """Also where the model may think first, which makes a grammar of the answer's schema; and in each dialect, as each
    makes a grammar of its own of the tools.
    """
    chat = WITH_SCHEMAS["/v1/chat/completions"]
    only_answer = {name: value for name, value in chat.items() if not name.startswith("tool")}
    only_tools = {name: value for name, value in chat.items() if name != "response_format"}
    tried: list[tuple[ToolDialect, str, dict[str, Any]]] = [
        *(("hermes", path, body) for path, body in WITH_SCHEMAS.items()),
        ("hermes", "/v1/chat/completions", only_answer),
        *((dialect, "/v1/chat/completions", only_tools) for dialect in DIALECTS),
    ]
    for dialect, path, body in tried:
        replies = ReplyFormat(tools=dialect, thinking="qwen3")
        async with httpx.AsyncClient(transport=transport(replies), base_url="http://server") as client:
            for place in places(body):
                response = await client.post(path, json=with_odd(body, place, odd))
                assert response.status_code in (200, 400), (place, response.text)
                assert response.status_code == 200 or response.json()["error"]["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ({"type": "object", "properties": []}, {}),
        ({"type": "object", "required": 5}, {}),
        (nested(150), {}),
        ({"type": "object", "properties": None, "additionalProperties": False}, {"strict": True}),
        ({"type": "object", "required": [[]], "additionalProperties": False}, {"strict": True}),
    ],
    ids=["properties in a list", "a number required", "deep", "strict, no properties", "strict, a list required"],
)
async def test_a_schema_that_cannot_be_read_is_refused_by_its_field(
    dialect: ToolDialect, schema: Any, fields: dict[str, Any]
) -> None:
    function = {"name": "f", "parameters": schema, **fields}
    body = {"messages": TURN, "tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    async with httpx.AsyncClient(transport=transport(ReplyFormat(tools=dialect)), base_url="http://server") as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


async def test_checks_that_cannot_follow_the_nesting_refuse_the_body() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b'{"tokens": [1]}', "more_body": False}

    def build(wire: DetokenizeRequest) -> None:
        raise RecursionError

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(RequestError, match="nested too deeply"):
        await parse_body(request, DetokenizeRequest, build, max_body_bytes=100)
