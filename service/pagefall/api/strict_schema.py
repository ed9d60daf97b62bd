"""OpenAI's rules for a schema with `strict: true`, so that what passes here passes there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pagefall.errors import RequestError

_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS: Final = ("properties", "$defs", "definitions", "patternProperties")
_SINGLE: Final = ("items", "additionalProperties", "not", "if", "then", "else")

Path = tuple[str, ...]


def check_strict(schema: dict[str, Any] | bool, *, name: str, param: str) -> None:
    """Raises `RequestError` naming `param` unless the root is an object, every object forbids additional properties,
    and all its properties are required.
    """
    if not isinstance(schema, dict) or not (schema.get("type") == "object" or "$ref" in schema):
        raise _refusal(name, param, (), "schema must be a JSON Schema of 'type: \"object\"' at its root")
    for path, part in _parts(schema):
        is_object = part.get("type") == "object" or (isinstance(part.get("type"), list) and "object" in part["type"])
        if not is_object and "properties" not in part:
            continue
        if part.get("additionalProperties") is not False:
            raise _refusal(name, param, path, "'additionalProperties' is required to be supplied and to be false")
        properties = part.get("properties", {})
        if not isinstance(properties, dict):
            raise _refusal(name, param, path, "'properties' is to be an object")
        required = part.get("required", [])
        if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
            raise _refusal(name, param, path, "'required' is to be an array of strings")
        missing = [key for key in properties if key not in required]
        extra = [key for key in required if key not in properties]
        if missing or extra:
            kind, key = ("Missing", missing[0]) if missing else ("Extra", extra[0])
            raise _refusal(
                name,
                param,
                path,
                "'required' is required to be supplied and to be an array including every key in properties. "
                f"{kind} required key '{key}'",
            )


def _parts(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every schema in `schema`, itself first, and where it stands."""
    waiting: list[tuple[Path, Any]] = [((), schema)]
    while waiting:
        path, part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        below: list[tuple[Path, Any]] = [((*path, key), part[key]) for key in _SINGLE if key in part]
        for key in _LISTS:
            if isinstance(part.get(key), list):
                below += [((*path, key, str(index)), item) for index, item in enumerate(part[key])]
        for key in _MAPS:
            if isinstance(part.get(key), dict):
                below += [((*path, key, name), item) for name, item in part[key].items()]
        waiting += reversed(below)


def _refusal(name: str, param: str, path: Path, reason: str) -> RequestError:
    context = "(" + ", ".join(f"'{step}'" for step in path) + ")"
    return RequestError(
        f"Invalid schema for '{name[:100]}': In context={context[:300]}, {reason[:300]}. Or send strict: false.",
        param=param,
        code="invalid_json_schema",
    )
