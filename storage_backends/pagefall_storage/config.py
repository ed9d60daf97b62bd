"""How a backend's configuration, a JSON object, becomes a frozen struct: once, at the edge."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from pagefall_storage.errors import StorageConfigError

StructT = TypeVar("StructT", bound=msgspec.Struct)

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[KMGT]I?)?B)", re.IGNORECASE)
_UNITS: Final = {"B": 1} | {
    f"{prefix}{infix}B": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for infix, base in (("", 1000), ("I", 1024))
}


class ByteSize(int):
    """A number of bytes. In a configuration: a whole number, or text such as "20GB" (10^9) or "1.5GiB" (2^30)."""


def parse_config(config: Mapping[str, object], type: type[StructT], *, where: str) -> StructT:
    """`config` as a `type`. Fields annotated `ByteSize` take text too.

    Raises `StorageConfigError` that begins with `where` and names the field: an unknown one together with the nearest
    valid one, or one of a wrong type or range.
    """
    valid = [field.encode_name for field in msgspec.structs.fields(type)]
    for name in config:
        if name not in valid:
            near = difflib.get_close_matches(name, valid, n=1)
            fix = f'did you mean "{near[0]}"?' if near else f"valid fields: {', '.join(valid)}"
            raise StorageConfigError(f'{where}: unknown field "{name}"; {fix}')
    try:
        return msgspec.convert(config, type, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise StorageConfigError(f"{where}: {error}") from error


def config_schema(type: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of what `parse_config` takes for `type`; its "description" is the docstring."""
    _, definitions = msgspec.json.schema_components([type], schema_hook=_schema, ref_template="#/$defs/{name}")
    schema = definitions.pop(type.__name__)
    return {**schema, "additionalProperties": False, **({"$defs": definitions} if definitions else {})}


def _schema(type: type) -> dict[str, Any]:
    if type is not ByteSize:
        raise NotImplementedError(f"no schema for a {type.__name__}")
    return {"title": "bytes", "type": ["integer", "string"], "minimum": 0, "pattern": _SIZE.pattern}


def _decode(type: type, value: object) -> object:
    if type is not ByteSize:
        raise NotImplementedError(f"no way to read a {type.__name__} from a configuration")
    match value:
        case bool():
            pass
        case int() if value >= 0:
            return ByteSize(value)
        case float() if value >= 0 and value.is_integer():
            return ByteSize(value)
        case str() if parsed := _SIZE.fullmatch(value.strip()):
            return ByteSize(float(parsed[1]) * _UNITS[parsed[2].upper()])
    raise ValueError(f'{value!r} is no number of bytes; write 20000000000, "20GB" or "20GiB"')
