from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.api.decode import parse_body
from pagefall.api.wire_chat import ChatCompletionRequest, WireMessage
from pagefall.api.wire_completions import CompletionRequest
from pagefall.api.wire_messages import MessagesRequest, WireBlock, WireClientTool
from pagefall.api.wire_responses import ResponsesRequest, WireItem, WireResponsesTool
from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"messages": [{"role": "user", "content": "a"}]} trailing',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"metadata": ' + b"[" * 100_000,
        b'{"metadata": ' + b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xef\xbb\xbf{}",
        b"PK\x03\x04binary\x00\x00",
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_body_that_is_no_request_is_a_400_in_openais_shape(client: httpx.AsyncClient, body: bytes) -> None:
    for path in (CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/detokenize"):
        response = await client.post(path, content=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (b'"seed": ' + b"1" * 5000, "seed"),
        (b'"seed": 1e400', "seed"),
        (b'"temperature": ' + b"1" * 400, "temperature"),
        (b'"temperature": -1e308', "temperature"),
        (b'"n": 1e99', "n"),
        (b'"max_tokens": 10000000000000000000000', "max_tokens"),
    ],
    ids=lambda value: repr(value[:30]),
)
async def test_an_absurd_number_names_its_field(client: httpx.AsyncClient, field: bytes, param: str) -> None:
    response = await client.post("/v1/completions", content=b'{"prompt": "a", ' + field + b"}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_of_a_key_that_comes_twice_the_last_one_counts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = b'{"prompt": "a", "seed": 1, "seed": 2}'
    assert (await client.post("/v1/completions", content=body)).status_code == 200
    assert engine.requests[0].sampling.seed == 2


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        ("content-type", "text/plain", "unsupported_content_type"),
        ("content-type", "application/x-www-form-urlencoded", "unsupported_content_type"),
        ("content-type", "multipart/form-data; boundary=x", "unsupported_content_type"),
        ("content-encoding", "gzip", "unsupported_content_encoding"),
    ],
)
async def test_a_body_that_does_not_claim_to_be_json_is_a_415(
    client: httpx.AsyncClient, header: str, value: str, code: str
) -> None:
    response = await client.post("/v1/completions", content=b'{"prompt": "a"}', headers={header: value})
    assert (response.status_code, response.json()["error"]["code"]) == (415, code)
    assert value.partition(";")[0] in response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json", ""])
async def test_every_name_of_json_will_do(client: httpx.AsyncClient, value: str) -> None:
    response = await client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": value})
    assert response.status_code == 200


async def test_deep_template_variables_are_no_servers_fault(client: httpx.AsyncClient) -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    body = '{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":' + deep + "}"
    assert (await client.post(CHAT, content=body)).status_code in (200, 400)


async def test_a_body_announced_too_large_is_refused_unread() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x"
        pytest.fail("the body was read on")

    async with http_client(FakeEngine(), HttpConfig(max_body_bytes=100)) as client:
        response = await client.post(CHAT, content=endless(), headers={"content-length": "101"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


async def test_a_body_that_turns_out_too_large_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 40
            yield b"x" * 40

    async with http_client(FakeEngine(), HttpConfig(max_body_bytes=100)) as client:
        response = await client.post(CHAT, content=endless())
    assert response.status_code == 413
    assert sent <= 160


async def test_a_large_body_is_answered_like_a_small_one(client: httpx.AsyncClient) -> None:
    token_ids = [7] * 400_000
    response = await client.post("/v1/completions", json={"prompt": token_ids})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    response = await client.post("/v1/completions", json={"prompt": [*token_ids, 500]})
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(("num_bytes", "on_the_loop"), [(1_000, True), (100_000, False)])
async def test_only_short_bodies_are_taken_in_on_the_loops_thread(num_bytes: int, on_the_loop: bool) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps({"prompt": "x" * num_bytes}).encode()}

    def thread(_: CompletionRequest) -> int:
        return threading.get_ident()

    request = Request({"type": "http", "headers": []}, receive)
    ident = await parse_body(request, CompletionRequest, thread, max_body_bytes=1_000_000)
    assert (ident == threading.get_ident()) is on_the_loop


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["user", "assistant", "text", "none", "auto", 1, 0, -1, 2**31, 2**63, 1e308]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["role", "content", "type", "text", "1"]), inner)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.just("user"), "content": st.text(max_size=5)}),
        st.dictionaries(st.sampled_from(WireMessage.__struct_fields__), VALUES, max_size=4),
    ),
    max_size=3,
)


def bodies(wire_type: type[msgspec.Struct], valid: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = st.dictionaries(st.sampled_from(wire_type.__struct_fields__), VALUES, max_size=6)
    return st.tuples(st.sampled_from([{}, valid]), fields).map(lambda parts: parts[0] | parts[1])


CHAT_BODIES = st.one_of(
    bodies(ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}]}),
    st.fixed_dictionaries({"messages": MESSAGES}),
)
TURN = {"role": "user", "content": "a"}


def parts_of(wire_type: type[msgspec.Struct], *types: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Objects of these types, with fields of theirs that have any value or one that could be meant."""
    values = st.one_of(VALUES, st.sampled_from(["c1", "f", "{}"]), st.just([{"type": "text", "text": "a"}]))
    fields = st.dictionaries(st.sampled_from(wire_type.__struct_encode_fields__), values, max_size=4)
    return st.lists(
        st.tuples(fields, st.sampled_from(types)).map(lambda parts: {**parts[0], "type": parts[1]}), max_size=3
    )


BLOCKS = parts_of(WireBlock, "text", "thinking", "tool_use", "tool_result", "image")
MESSAGES_BODIES = st.one_of(
    bodies(MessagesRequest, {"max_tokens": 5, "messages": [TURN]}),
    st.fixed_dictionaries(
        {
            "max_tokens": st.just(5),
            "messages": st.lists(
                st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": BLOCKS}), max_size=3
            ),
            "system": BLOCKS,
            "tools": parts_of(WireClientTool, "custom", "bash"),
        }
    ),
)
RESPONSES_BODIES = st.one_of(
    bodies(ResponsesRequest, {"input": "a"}),
    st.fixed_dictionaries(
        {
            "input": parts_of(WireItem, "message", "reasoning", "function_call", "function_call_output", "x"),
            "tools": parts_of(WireResponsesTool, "function", "web_search"),
        }
    ),
)
BODIES = st.one_of(
    st.tuples(st.just(CHAT), CHAT_BODIES),
    st.tuples(st.just("/v1/completions"), bodies(CompletionRequest, {"prompt": "a"})),
    st.tuples(st.just("/v1/messages"), MESSAGES_BODIES),
    st.tuples(st.just("/v1/responses"), RESPONSES_BODIES),
    st.tuples(st.just("/tokenize"), st.one_of(st.fixed_dictionaries({"prompt": VALUES}), CHAT_BODIES)),
    st.tuples(st.just("/detokenize"), st.fixed_dictionaries({"tokens": VALUES})),
)


@pytest.fixture(scope="module")
async def lasting_client() -> AsyncIterator[httpx.AsyncClient]:
    """One application and one loop for all examples of a property: building them anew takes longer than a request."""
    async with http_client(FakeEngine()) as client:
        yield client


@given(request=BODIES)
@settings(max_examples=400, deadline=None)
async def test_no_body_whatsoever_is_a_servers_error(
    lasting_client: httpx.AsyncClient, request: tuple[str, Any]
) -> None:
    path, body = request
    response = await lasting_client.post(path, content=json.dumps(body).encode("utf-8", "surrogatepass"))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        fields = {"message", "type"} if path == "/v1/messages" else {"message", "type", "param", "code"}
        assert set(response.json()["error"]) == fields


@given(body=st.binary(max_size=100))
@settings(max_examples=100, deadline=None)
async def test_no_bytes_whatsoever_are_a_servers_error(lasting_client: httpx.AsyncClient, body: bytes) -> None:
    response = await lasting_client.post(CHAT, content=body)
    assert response.status_code == 400
