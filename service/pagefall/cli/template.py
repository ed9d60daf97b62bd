"""`--chat-template`: a template, or a file with one."""

from __future__ import annotations

from pathlib import Path

from pagefall.cli.parser import Given
from pagefall.errors import ConfigError


def template_text(given: Given) -> Given:
    """The template itself. Every Jinja template worth having has a brace in it; hardly any file name does."""
    if "{" in given.value:
        return given
    try:
        return Given(Path(given.value).read_text(encoding="utf-8"), given.source)
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not a UTF-8 text file"
        raise ConfigError(f"{given.source}: {given.value!r} is no template, and as a file: {reason.lower()}") from error
