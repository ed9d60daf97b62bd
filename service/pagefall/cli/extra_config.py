"""A store's settings as a user gives them: a JSON object, inline or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pagefall.cli.flags import nearest
from pagefall.cli.parser import Given
from pagefall.errors import ConfigError
from pagefall_storage.registry import names_in


def read_extra_config(given: Given) -> dict[str, Any]:
    """The object that `given` holds as text, or that is in the file named after an `@`.

    Raises `ConfigError` for a file that cannot be read, and for anything but a JSON object.
    """
    text: str = given.value
    source = given.source
    if text.startswith("@"):
        source = f"{given.source} {text}"
        try:
            text = Path(text[1:]).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or "not a UTF-8 text file"
            raise ConfigError(f"{source}: {reason.lower()}") from error
    try:
        settings = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{source}: not valid JSON ({error}); give an object such as \'{{"path": "/some/folder"}}\', or @FILE'
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(f'{source}: JSON, but not an object; give one such as \'{{"path": "/some/folder"}}\'')
    return settings


def check_backend(name: str, source: str, known: Sequence[str]) -> None:
    """Raises `ConfigError` for a store whose name is not `known`, alone or among those that are stacked."""
    for each in names_in(name):
        if each not in known:
            alike = nearest(each, known)
            hint = f"did you mean {alike}?" if alike else "a plug-in's name is known once it is installed"
            raise ConfigError(f"{source}: {each!r} is not one of {', '.join(known)}; {hint}")
