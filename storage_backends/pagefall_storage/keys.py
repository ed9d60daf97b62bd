"""The law of keys, which every backend checks before it does anything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pagefall_storage.protocol import Key

_KEY: Final = re.compile(r"(?=.{1,120}\Z)[a-z0-9-]+(?:/[a-z0-9-]+)*")


def is_key(name: str) -> bool:
    """Whether `name` is what `protocol` calls a key."""
    return _KEY.fullmatch(name) is not None


def check_keys(keys: Iterable[Key]) -> None:
    """Raises `ValueError` naming the first that is not a key."""
    for key in keys:
        if not is_key(key):
            raise ValueError(f"not a key: {key!r}; keys are 1 to 120 of a-z, 0-9, -, / with no empty part")
