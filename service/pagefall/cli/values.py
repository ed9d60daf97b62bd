"""A value as a user wrote it, in a flag, a variable or a TOML file, becomes the type its field has."""

from __future__ import annotations

from typing import Any

from pagefall.cli.flags import Option
from pagefall.errors import ConfigError

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def from_text(option: Option, text: str, source: str) -> Any:
    """Read `text` from the command line or the environment. `source` is how errors call it."""
    words = text.split(",") if option.many else [text]
    return _checked(option, [_parse(option, word.strip() if option.many else word, source) for word in words], source)


def from_toml(option: Option, value: Any, source: str) -> Any:
    """Check `value` as a TOML parser made it; a whole number serves where a number is wanted, nothing else converts."""
    values = value if option.many and isinstance(value, list) else [value]
    for each in values:
        is_number = option.type is float and type(each) is int
        if type(each) is not option.type and not is_number:
            raise ConfigError(f"{source}: {each!r} is not {_NOUNS[option.type]}")
    return _checked(option, [option.type(each) for each in values], source)


def _parse(option: Option, word: str, source: str) -> Any:
    try:
        return option.type(word)
    except ValueError:
        raise ConfigError(f"{source}: {word!r} is not {_NOUNS[option.type]}") from None


def _checked(option: Option, values: list[Any], source: str) -> Any:
    flag = option.flag
    for value in values:
        if option.choices and value not in option.choices:
            raise ConfigError(f"{source}: {value!r} is not one of {', '.join(option.choices)}")
        if value == "":
            raise ConfigError(f"{source}: the value is empty")
        # Written as "not (in range)" so that NaN, which compares false with everything, is refused too.
        if flag.minimum is not None and not value >= flag.minimum:
            raise ConfigError(f"{source}: {value} is too small; use {flag.minimum:g} or more")
        if flag.above is not None and not value > flag.above:
            raise ConfigError(f"{source}: {value} is too small; use more than {flag.above:g}")
        if flag.maximum is not None and not value <= flag.maximum:
            raise ConfigError(f"{source}: {value} is too large; use {flag.maximum:g} or less")
    return tuple(values) if option.many else values[0]
