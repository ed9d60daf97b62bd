"""Tools in one order, whatever order a client wrote their keys in: equal tools make equal prompts."""

from __future__ import annotations

from typing import Any, Final

from pagefall.text.requests import Tool

_KEYWORDS: Final = (
    "$schema",
    "$id",
    "type",
    "title",
    "description",
    "enum",
    "const",
    "default",
    "properties",
    "required",
    "items",
    "additionalProperties",
)
"""JSON schema's in the order in which most tools write them, so that a prompt looks like those of the training."""

_NAMED_SCHEMAS: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas: names have no usual order and are sorted."""

_DATA: Final = ("enum", "const", "default", "examples")
"""Keywords whose value is no schema."""

_RANK: Final = {keyword: rank for rank, keyword in enumerate(_KEYWORDS)}


def canonical_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema with its keys in canonical order, at every depth; lists stay as they are."""
    ordered = sorted(schema, key=lambda keyword: (_RANK.get(keyword, len(_RANK)), keyword))
    return {keyword: _value(keyword, schema[keyword]) for keyword in ordered}


def as_function(tool: Tool) -> dict[str, Any]:
    """The tool in the form that chat templates expect."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _value(keyword: str, value: Any) -> Any:
    if keyword in _DATA:
        return _sorted(value)
    if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _schema(value[name]) for name in sorted(value)}
    return _schema(value)


def _schema(value: Any) -> Any:
    if isinstance(value, dict):
        return canonical_schema(value)
    return [_schema(element) for element in value] if isinstance(value, list) else value


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(element) for element in value] if isinstance(value, list) else value
