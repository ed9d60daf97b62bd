"""The request fields that say what an answer must look like: OpenAI's, SGLang's and vLLM's names for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pagefall.api.strict_schema import check_strict
from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex
from pagefall.text.grammar import choice

Schema = dict[str, Any] | bool
SchemaOrText = dict[str, Any] | bool | str
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=4096)]
SchemaName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class JsonSchemaSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`schema` absent is any JSON. `strict` holds the schema itself to OpenAI's rules; the answer always validates."""

    name: SchemaName
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    json_schema: JsonSchemaSettings


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's."""

    json: SchemaOrText | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None


class ConstraintFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """At most one of them may be set. Null is no constraint."""

    response_format: ResponseFormat | None = None
    regex: str | None = None
    json_schema: SchemaOrText | None = None
    ebnf: str | None = None
    grammar: str | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None


def answer_constraint(fields: ConstraintFields) -> Constraint | None:
    """What the answer must look like, None for anything.

    Raises `RequestError` naming the field: for two constraints at once, a schema in text that is no JSON, a strict
    schema that breaks OpenAI's rules. Whether it compiles is for the engine to find out.
    """
    found = dict(_constraints(fields))
    if len(found) > 1:
        first, second, *_ = found
        raise RequestError(
            f"'{first}' and '{second}' both say what the answer must look like: send only one of them.",
            param=second,
            code="invalid_value",
        )
    return next(iter(found.values()), None)


def schema_constraint(schema: Schema | None, *, name: str, strict: bool, param: str) -> JsonSchema:
    """Raises `RequestError` naming `param` for a `strict` schema that OpenAI would refuse. None: any JSON."""
    schema = True if schema is None else schema
    if strict:
        check_strict(schema, name=name, param=param)
    return JsonSchema(schema=schema, param=param)


def _constraints(fields: ConstraintFields) -> Iterator[tuple[str, Constraint]]:
    """Each with the name of its field."""
    match fields.response_format:
        case JsonObjectFormat():
            yield "response_format", AnyJson()
        case JsonSchemaFormat(json_schema=settings):
            yield (
                "response_format",
                schema_constraint(
                    settings.schema, name=settings.name, strict=bool(settings.strict), param="response_format"
                ),
            )
        case _:
            pass
    grouped = fields.structured_outputs or StructuredOutputs()
    schemas: dict[str, SchemaOrText | None] = {
        "json_schema": fields.json_schema,
        "guided_json": fields.guided_json,
        "structured_outputs.json": grouped.json,
    }
    regexes = {
        "regex": fields.regex,
        "guided_regex": fields.guided_regex,
        "structured_outputs.regex": grouped.regex,
    }
    choices = {"guided_choice": fields.guided_choice, "structured_outputs.choice": grouped.choice}
    grammars = {
        "ebnf": fields.ebnf,
        "grammar": fields.grammar,
        "guided_grammar": fields.guided_grammar,
        "structured_outputs.grammar": grouped.grammar,
    }
    for name, schema in schemas.items():
        if schema is not None:
            yield name, JsonSchema(schema=_parsed(schema, name), param=name)
    for name, pattern in regexes.items():
        if pattern is not None:
            yield name, Regex(pattern=pattern, param=name)
    for name, texts in choices.items():
        if texts is not None:
            yield name, choice(texts, param=name)
    for name, grammar in grammars.items():
        if grammar is not None:
            yield name, Lark(grammar=grammar, param=name)
    if grouped.json_object:
        yield "structured_outputs.json_object", AnyJson()


def _parsed(schema: SchemaOrText, param: str) -> Schema:
    """SGLang and vLLM take the schema as an object or as its text."""
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema, type=Schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"Invalid value for '{param}': the text is no JSON schema: {str(error)[:200]}.",
            param=param,
            code="invalid_value",
        ) from error
