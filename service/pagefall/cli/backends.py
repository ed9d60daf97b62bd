"""`pagefall backends`: the stores that are installed, what they can do, and how each is configured."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.errors import ConfigError
from pagefall_storage.config import config_schema
from pagefall_storage.installed import Installed, installed_backends

_WORDS: Final = {"string": "text", "boolean": "true or false", "integer": "whole number", "object": "JSON object"}


class BackendsConfig(msgspec.Struct, frozen=True, kw_only=True):
    json: bool = False


BACKENDS_FLAGS: Final = FlagTable(
    program="pagefall backends [NAME]",
    summary="The stores that --hicache-storage-backend can name; of one of them its settings.",
    groups=(Group("Flags", "", BackendsConfig, (Flag("json", "the same as JSON, with the settings' JSON Schema"),)),),
)


def backends(argv: Sequence[str]) -> int:
    """Prints what is installed; 1 where a named backend cannot be used. Raises `ConfigError` for a name nothing has."""
    name = argv[0] if argv and not argv[0].startswith("-") else None
    flags = argv if name is None else argv[1:]
    config: BackendsConfig = build_config(
        BACKENDS_FLAGS, BackendsConfig, parse_arguments(BACKENDS_FLAGS, flags, os.environ)
    )
    every = installed_backends()
    shown = [each for each in every if name in (None, each.name)]
    if not shown:
        known = dict.fromkeys(each.name for each in every)
        raise ConfigError(
            f"backends: {name!r} is not one of {', '.join(known)}; a plug-in is known once it is installed"
        )
    if config.json:
        document = msgspec.json.encode([_as_dict(each) for each in shown])
        sys.stdout.write(msgspec.json.format(document).decode() + "\n")
    else:
        sys.stdout.write(_table(shown) + ("" if name is None else "".join(map(_settings, shown))))
    return int(name is not None and any(each.problem is not None for each in shown))


def _as_dict(it: Installed) -> dict[str, Any]:
    return {
        "name": it.name,
        "distribution": it.distribution,
        "version": it.version,
        "capabilities": it.about.capabilities,
        "config_schema": None if it.about.config_type is None else config_schema(it.about.config_type),
        "problem": it.problem,
    }


def _table(shown: Sequence[Installed]) -> str:
    rows = [["backend", "from", "capabilities"]]
    rows += [
        [each.name, f"{each.distribution} {each.version}", ", ".join(each.about.capabilities) or "-"] for each in shown
    ]
    problems = [f"{each.name}: {each.problem}" for each in shown if each.problem is not None]
    return "\n".join([*_columns(rows), *problems]) + "\n"


def _settings(it: Installed) -> str:
    """A line for each setting, and what the backend says about them."""
    if it.problem is not None:
        return ""
    if it.about.config_type is None:
        return "\nIt does not say how it is configured.\n"
    schema = config_schema(it.about.config_type)
    required = schema.get("required", [])
    rows = [["setting", "value", "default"]]
    for name, field in schema["properties"].items():
        default = "required" if name in required else msgspec.json.encode(field.get("default")).decode()
        rows.append([name, _value(field), default])
    lines = _columns(rows) if len(rows) > 1 else ["no settings"]
    says = (it.about.config_type.__doc__ or "").strip()
    return "\n".join(["", *lines, *(["", *(line.strip() for line in says.splitlines())] if says else [])]) + "\n"


def _value(field: Mapping[str, Any]) -> str:
    """What may stand there, in words."""
    if "anyOf" in field:
        return " or ".join(_value(each) for each in field["anyOf"])
    if "enum" in field:
        return " or ".join(msgspec.json.encode(each).decode() for each in field["enum"])
    if "title" in field:
        return str(field["title"])
    words = _WORDS.get(field.get("type", ""), field.get("type", "JSON object"))
    low, high = field.get("minimum"), field.get("maximum")
    limits = {
        "from": low if high is None else None,
        "up to": high if low is None else None,
        "above": field.get("exclusiveMinimum"),
        "below": field.get("exclusiveMaximum"),
    }
    parts = [words, *(f"{word} {limit}" for word, limit in limits.items() if limit is not None)]
    if low is not None and high is not None:
        parts.append(f"{low} to {high}")
    return ", ".join(parts)


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
