"""A command line becomes `Given` values: argparse cuts it up and prints the help, the flag table says the rest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from pagefall.cli.flags import FlagTable, nearest, options
from pagefall.cli.values import from_text
from pagefall.errors import ConfigError


class Given(msgspec.Struct, frozen=True):
    """A value that the user gave, and the words by which errors call it: `--port`, `PAGEFALL_API_KEY`, ..."""

    value: Any
    source: str


GivenValues = Mapping[str, Given]
"""By flag name, without the dashes. Only what the user wrote is in it: defaults are the config's."""


class Parser(argparse.ArgumentParser):
    """argparse whose every complaint is a one-line `ConfigError`."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def build_parser(table: FlagTable) -> Parser:
    """The parser of `table`. It leaves values as text, and absent flags leave no trace in its namespace."""
    parser = Parser(
        prog=table.program,
        usage=f"{table.program} [flags]",
        description=table.summary,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30, width=100),
    )
    for flag in table.command_flags:
        parser.add_argument(f"--{flag.name}", dest=flag.name, metavar=flag.metavar, help=_escape(flag.help))
    known = options(table)
    for group in table.groups:
        section = parser.add_argument_group(group.title)
        for flag in group.flags:
            option = known[flag.name]
            if option.type is bool:
                section.add_argument(f"--{flag.name}", dest=flag.name, action="store_true", help=_escape(flag.help))
            else:
                default = f" (default: {option.default_text})" if option.default_text else ""
                environ = f" [env: {flag.environ}]" if flag.environ else ""
                text = _escape(f"{flag.help}{default}{environ}")
                section.add_argument(f"--{flag.name}", dest=flag.name, metavar=option.metavar, help=text)
    if table.always_on:
        section = parser.add_argument_group("Always on", "accepted so that existing commands work; they change nothing")
        for flag in table.always_on:
            section.add_argument(f"--{flag.name}", dest=flag.name, action="store_true", help=_escape(flag.help))
    return parser


def parse_arguments(table: FlagTable, argv: Sequence[str], environ: Mapping[str, str]) -> GivenValues:
    """What `argv` sets and, where it is silent, `environ`. An empty variable counts as unset.

    Raises `ConfigError` for anything unknown, malformed or out of range. `--help` prints and raises `SystemExit`.
    """
    namespace, extra = build_parser(table).parse_known_args(list(argv))
    if extra:
        raise ConfigError(_unknown_argument(table, extra))
    written: dict[str, Any] = vars(namespace)
    given = {name: Given(value, f"--{name}") for name, value in written.items()}
    for name, option in options(table).items():
        variable = option.flag.environ
        if name in written and option.type is not bool:
            given[name] = Given(from_text(option, written[name], f"--{name}"), f"--{name}")
        elif name not in written and variable and environ.get(variable):
            given[name] = Given(from_text(option, environ[variable], variable), variable)
    return given


def build_config(table: FlagTable, root: type[msgspec.Struct], given: GivenValues) -> Any:
    """An instance of `root` with the given values in their fields and defaults everywhere else."""
    parts: dict[str, dict[str, Any]] = {}
    for name, option in options(table).items():
        if name in given:
            parts.setdefault(option.part, {})[option.field] = given[name].value
    fields: dict[str, Any] = {
        group.part: group.config(**parts.pop(group.part, {})) for group in table.groups if group.part
    }
    return root(**fields, **parts.get("", {}))


def say_unknown(table: FlagTable, name: str, *, dashes: str) -> str:
    """The clause after the name of a flag or key that `table` lacks: of a later version, misspelt, or unheard of."""
    if any(name.startswith(later) if later.endswith("-") else name == later for later in table.later):
        return "not supported in this version"
    others = (*table.command_flags, *table.always_on) if dashes else table.always_on
    alike = nearest(name, [*options(table), *(flag.name for flag in others)])
    return f"unknown; did you mean {dashes}{alike}?" if alike else f"unknown; see {table.program} --help"


def contradiction(given: GivenValues, first: str, second: str, reason: str) -> ConfigError:
    """The error for two flags that make no sense together."""
    return ConfigError(f"{given[first].source} contradicts {given[second].source}: {reason}; give one of them")


def _unknown_argument(table: FlagTable, extra: Sequence[str]) -> str:
    flag = next((argument for argument in extra if argument.startswith("-")), None)
    if flag is None:
        return f"unexpected argument {extra[0]!r}; {table.program} takes flags only, see {table.program} --help"
    name = flag.split("=", 1)[0]
    return f"{name}: {say_unknown(table, name.lstrip('-'), dashes='--')}"


def _escape(text: str) -> str:
    """Argparse formats help with `%`."""
    return text.replace("%", "%%")
