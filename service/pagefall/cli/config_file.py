"""`--config FILE`: the flags of the command line in a TOML file.

model-path = "some/folder"      # at the top, or in the table of its part: [model] [cache] [scheduler] [http]

[http]
port = 8000
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pagefall.cli.flags import FlagTable, options
from pagefall.cli.parser import Given, GivenValues, say_unknown
from pagefall.cli.values import from_toml
from pagefall.errors import ConfigError


def read_config_file(table: FlagTable, path: Path) -> GivenValues:
    """The values that the TOML file at `path` sets. A key is a flag's name, once, at the top or in its own table.

    Raises `ConfigError` for a file that cannot be read or parsed, and for any key or value the table does not allow.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {(error.strerror or 'cannot be read').lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not valid TOML: {error}") from error

    parts = [group.part for group in table.groups]
    given: dict[str, Given] = {}
    for key, value in document.items():
        if isinstance(value, dict) and key in parts:
            for name, inner in value.items():
                _set(table, given, name, inner, path, part=key)
        elif isinstance(value, dict):
            raise ConfigError(f"[{key}] in {path}: unknown table; the tables are {', '.join(f'[{p}]' for p in parts)}")
        else:
            _set(table, given, key, value, path, part=None)
    return given


def _set(table: FlagTable, given: dict[str, Given], name: str, value: Any, path: Path, part: str | None) -> None:
    source = f"{name} in {path}"
    if name in {flag.name for flag in table.always_on}:
        if value is not True:
            raise ConfigError(f"{source}: always on, it can only be true; remove it")
        return
    option = options(table).get(name)
    if option is None:
        raise ConfigError(f"{source}: {say_unknown(table, name, dashes='')}")
    if part is not None and part != option.part:
        raise ConfigError(f"{source}: belongs in [{option.part}], not in [{part}]")
    if name in given:
        raise ConfigError(f"{source}: set twice, at the top and in [{option.part}]; keep one")
    given[name] = Given(from_toml(option, value, source), source)
