"""What a field of a body may be, where it is one of a few: for the answer to a request that has another value there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import inspect

_STEP: Final = re.compile(r"\[\.\.\.\]|[^.\[]+")
_ITEM: Final = "[...]"


def allowed_values(wire_type: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """By `path` as msgspec writes it (`tools[...].type`): the values of an enumeration, or the tags that tell the
    members of a union apart. Empty where it is neither.
    """
    steps = _STEP.findall(path)
    if not steps:
        return ()
    types: list[inspect.Type] = [inspect.type_info(wire_type)]
    for step in steps[:-1]:
        types = [inner for type_ in _members(types) for inner in _inside(type_, step)]
    last = steps[-1]
    tags = [str(t.tag) for t in _members(types) if isinstance(t, inspect.StructType) and t.tag_field == last]
    inner = _members(inner for type_ in _members(types) for inner in _inside(type_, last))
    values = [str(value) for t in inner if isinstance(t, inspect.LiteralType) for value in t.values]
    return tuple(dict.fromkeys(tags + values))


def _members(types: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    """Without unions and metadata around them."""
    for type_ in types:
        if isinstance(type_, inspect.UnionType):
            yield from _members(type_.types)
        elif isinstance(type_, inspect.Metadata):
            yield from _members([type_.type])
        else:
            yield type_


def _inside(type_: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match type_:
        case inspect.StructType():
            yield from (field.type for field in type_.fields if field.encode_name == step)
        case inspect.ListType() | inspect.VarTupleType() if step == _ITEM:
            yield type_.item_type
        case inspect.DictType() if step == _ITEM:
            yield type_.value_type
