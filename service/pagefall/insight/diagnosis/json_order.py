"""JSON in prompts, and tool schemas, that say the same in another order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from pagefall.insight.diagnosis.observations import Section
from pagefall.insight.diagnosis.replay import Sections

_SHORTEST: Final = 32
_MAX_TRIES: Final = 32
"""Braces of one text at which JSON is looked for."""

_ROLES: Final = frozenset({"system", "developer", "tools", None})
"""Where programs write JSON into prompts. In conversations it is data, and seldom twice the same."""

_DECODER: Final = json.JSONDecoder()


class Reordering(msgspec.Struct, frozen=True, kw_only=True):
    """Two forms of the same JSON, and where the second was seen first. `has_other_items`: the order of items in a list
    differs, such as that of tools; else that of keys in an object, or the way of writing it.
    """

    one: str
    other: str
    has_other_items: bool
    prompt: int
    message_index: int | None
    role: str | None
    char_offset: int


class OrderedTexts:
    """Puts the JSON in prompts into one order. It remembers each text."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, prompt: Sections) -> Sections:
        return tuple(
            Section(section.role, self.of(section.content), section.message_index)
            if section.role in _ROLES
            else section
            for section in prompt
        )

    def of(self, text: str) -> str:
        if "{" not in text:
            return text
        found = self._known.get(text)
        if found is None:
            parts, end = [], 0
            for start, stop, value in _values(text):
                parts += [text[end:start], _dump(_ordered(value))]
                end = stop
            found = self._known[text] = "".join([*parts, text[end:]])
        return found


def find_reordering(prompts: Iterable[Sections]) -> Reordering | None:
    """The first JSON that was seen before in another order."""
    seen: dict[str, str] = {}
    looked_at: set[str] = set()
    for number, prompt in enumerate(prompts):
        for section in prompt:
            text = section.content
            if section.role not in _ROLES or "{" not in text or text in looked_at:
                continue
            looked_at.add(text)
            for start, stop, value in _values(text):
                before = seen.setdefault(_dump(_ordered(value)), text[start:stop])
                if before != text[start:stop]:
                    return Reordering(
                        one=before,
                        other=text[start:stop],
                        has_other_items=_dump(_sorted_keys(json.loads(before))) != _dump(_sorted_keys(value)),
                        prompt=number,
                        message_index=section.message_index,
                        role=section.role,
                        char_offset=start,
                    )
    return None


def _values(text: str) -> Iterator[tuple[int, int, Any]]:
    """Objects and lists in `text`, `[start, stop)` and the value, none inside another and none shorter than 32."""
    end = tries = 0
    while tries < _MAX_TRIES:
        starts = [at for at in (text.find("{", end), text.find("[", end)) if at >= 0]
        if not starts:
            return
        start = min(starts)
        tries += 1
        try:
            value, stop = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
            continue
        if stop - start >= _SHORTEST:
            yield start, stop, value
        end = stop


def _ordered(value: Any) -> Any:
    """Keys sorted, and the items of lists of objects too: it is for these that the order seldom matters."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        items = [_ordered(item) for item in value]
        return sorted(items, key=_dump) if items and all(isinstance(item, dict) for item in items) else items
    return value


def _sorted_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted_keys(value[key]) for key in sorted(value)}
    return [_sorted_keys(item) for item in value] if isinstance(value, list) else value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
