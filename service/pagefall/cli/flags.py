"""What a flag is: one row of a table, from which parsing, files, `--help` and the reference page are made.

A row never repeats what its config field says already: type, choices and default are read from the struct.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

Scalar = type[bool] | type[int] | type[float] | type[str]


class Flag(msgspec.Struct, frozen=True):
    """`name` is written without dashes in front; its field is the same with underscores.

    `minimum` and `maximum` are inclusive, `above` is exclusive; `environ` names the variable that sets it too.
    """

    name: str
    help: str
    metavar: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    environ: str | None = None


class Group(msgspec.Struct, frozen=True):
    """Flags that fill one config struct. `part` is its field in the root (and its TOML table); "" is the root."""

    title: str
    part: str
    config: type[msgspec.Struct]
    flags: tuple[Flag, ...]


class FlagTable(msgspec.Struct, frozen=True):
    """All flags of one command.

    `command_flags` belong to the command and to no config field; their values stay text. `always_on` are accepted and
    change nothing, as their help says. `later`: names, or prefixes ending in a dash, that a later version brings.
    """

    program: str
    summary: str
    groups: tuple[Group, ...]
    command_flags: tuple[Flag, ...] = ()
    always_on: tuple[Flag, ...] = ()
    later: tuple[str, ...] = ()


class Option(msgspec.Struct, frozen=True):
    """A flag together with what its config field says. `many`: a tuple, written with commas."""

    flag: Flag
    part: str
    field: str
    type: Scalar
    many: bool
    choices: tuple[str, ...]
    default: Any

    @property
    def metavar(self) -> str:
        if self.choices and not self.many:
            return "{" + ",".join(self.choices) + "}"
        return self.flag.metavar or {int: "N", float: "X", str: "TEXT"}[self.type]

    @property
    def default_text(self) -> str:
        """The default as a user would write it, or "" where None or an unset switch needs no words."""
        if self.default is None or self.default is False or self.default is msgspec.NODEFAULT:
            return ""
        return ",".join(map(str, self.default)) if self.many else str(self.default)


def options(table: FlagTable) -> dict[str, Option]:
    """Every settable flag of `table` by name, in the table's order."""
    found: dict[str, Option] = {}
    for group in table.groups:
        fields = {field.name: field for field in msgspec.structs.fields(group.config)}
        for flag in group.flags:
            field = fields[flag.name.replace("-", "_")]
            scalar, many, choices = _unwrap(field.type)
            found[flag.name] = Option(flag, group.part, field.name, scalar, many, choices, field.default)
    return found


def _unwrap(annotation: Any) -> tuple[Scalar, bool, tuple[str, ...]]:
    """`int | None` -> int, `tuple[int, ...]` -> many ints, `Literal["a", "b"]` -> str with choices."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (a for a in arguments if a is not NoneType)
        return _unwrap(inner)
    if origin is tuple:
        scalar, _, choices = _unwrap(arguments[0])
        return scalar, True, choices
    if origin is Literal:
        return str, False, arguments
    return annotation, False, ()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when none is alike."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)
