"""What an answer must look like: every field for it, in both endpoints."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.unit.api.fake_engine import MODEL, FakeEngine, listening, open_ai

from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex

pytestmark = pytest.mark.anyio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"prompt": "Hi"},
}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRICT: dict[str, Any] = {**SCHEMA, "required": ["a"], "additionalProperties": False}


def formatted(schema: object, **settings: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **settings}}


CASES: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    ({"response_format": None, "regex": None, "structured_outputs": None}, None),
    ({"response_format": {"type": "text"}}, None),
    ({"structured_outputs": {}}, None),
    ({"response_format": {"type": "json_object"}}, AnyJson()),
    ({"response_format": formatted(SCHEMA)}, JsonSchema(schema=SCHEMA)),
    ({"response_format": formatted(SCHEMA, strict=False, description="d")}, JsonSchema(schema=SCHEMA)),
    ({"response_format": formatted(STRICT, strict=True)}, JsonSchema(schema=STRICT)),
    ({"response_format": formatted(None)}, JsonSchema(schema=True)),
    ({"regex": "a+"}, Regex(pattern="a+")),
    ({"json_schema": '{"type": "string"}'}, JsonSchema(schema={"type": "string"}, param="json_schema")),
    ({"ebnf": 'root ::= "a"'}, Lark(grammar='root ::= "a"', param="ebnf")),
    ({"grammar": 'start: "a"'}, Lark(grammar='start: "a"')),
    ({"guided_json": SCHEMA}, JsonSchema(schema=SCHEMA, param="guided_json")),
    ({"guided_regex": "a+"}, Regex(pattern="a+", param="guided_regex")),
    ({"guided_grammar": 'start: "a"'}, Lark(grammar='start: "a"', param="guided_grammar")),
    ({"guided_choice": ["yes", "no"]}, Lark(grammar='start: CHOICE\nCHOICE: "yes" | "no"', param="guided_choice")),
    ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(schema=SCHEMA, param="structured_outputs.json")),
    ({"structured_outputs": {"regex": "b"}}, Regex(pattern="b", param="structured_outputs.regex")),
    ({"structured_outputs": {"json_object": True}}, AnyJson()),
    (
        {"structured_outputs": {"choice": ["x"]}},
        Lark(grammar='start: CHOICE\nCHOICE: "x"', param="structured_outputs.choice"),
    ),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, Lark(grammar='start: "a"', param="structured_outputs.grammar")),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("fields", "expected"), CASES)
async def test_every_field_becomes_its_constraint(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, fields: dict[str, Any], expected: Constraint | None
) -> None:
    response = await client.post(path, json={"model": MODEL, **BASE[path], **fields})
    assert response.status_code == 200, response.text
    assert engine.requests[-1].constraint == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        "response_format.json_schema.name",
    ),
    ({"response_format": formatted(SCHEMA, name="a b")}, "response_format.json_schema.name"),
    ({"response_format": formatted([])}, "response_format.json_schema.schema"),
    ({"response_format": "json_object"}, "response_format"),
    ({"regex": 1}, "regex"),
    ({"json_schema": "{"}, "json_schema"),
    ({"json_schema": "[]"}, "json_schema"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs.regex"),
    ({"regex": "a", "ebnf": "b"}, "ebnf"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "b"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_a_wrong_or_second_constraint_is_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(CHAT, json={"model": MODEL, **BASE[CHAT], **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)
    assert engine.requests == []


BREACHES: list[tuple[Any, str]] = [
    ({"type": "string"}, "root"),
    (True, "root"),
    (SCHEMA, "'additionalProperties' is required"),
    ({**SCHEMA, "additionalProperties": True, "required": ["a"]}, "'additionalProperties' is required"),
    ({**SCHEMA, "additionalProperties": False}, "Missing required key 'a'"),
    ({**STRICT, "required": ["a", "b"]}, "Extra required key 'b'"),
    ({**STRICT, "properties": {"a": SCHEMA}}, r"\('properties', 'a'\)"),
    ({**STRICT, "properties": {"a": {"type": ["object", "null"]}}}, r"\('properties', 'a'\)"),
    ({**STRICT, "properties": {"a": {"type": "array", "items": SCHEMA}}}, r"\('properties', 'a', 'items'\)"),
    ({**STRICT, "properties": {"a": {"anyOf": [{}, SCHEMA]}}}, r"\('properties', 'a', 'anyOf', '1'\)"),
    ({**STRICT, "$defs": {"d": SCHEMA}}, r"\('\$defs', 'd'\)"),
]


@pytest.mark.parametrize(("schema", "reason"), BREACHES)
async def test_a_strict_schema_is_held_to_openais_rules_and_a_lenient_one_is_used_as_it_is(
    client: httpx.AsyncClient, engine: FakeEngine, schema: Any, reason: str
) -> None:
    body = {"model": MODEL, **BASE[CHAT]}
    response = await client.post(CHAT, json={**body, "response_format": formatted(schema, strict=True)})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format"
    assert error["code"] == "invalid_json_schema"
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(error["message"])
    response = await client.post(CHAT, json={**body, "response_format": formatted(schema, strict=False)})
    assert response.status_code == 200
    assert engine.requests[-1].constraint == JsonSchema(schema=schema)


class Person(BaseModel):
    name: str
    friends: list[Person]


async def test_openais_client_parses_into_a_model(engine: FakeEngine) -> None:
    engine.words = ('{"name": "Ann", "friends"', ': [{"name":"Bo","friends":[]}]}', "")
    async with listening(engine) as (host, port), open_ai(host, port) as client:
        completion = await client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], response_format=Person
        )
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Hi"}],
                extra_body={"regex": "a", "guided_json": {}},
            )
    parsed = completion.choices[0].message.parsed
    assert parsed is not None
    assert [friend.name for friend in parsed.friends] == ["Bo"]
    [request] = engine.requests
    assert isinstance(request.constraint, JsonSchema)
