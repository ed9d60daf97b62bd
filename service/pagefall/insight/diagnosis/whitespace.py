"""Versions of one text that differ in nothing one sees."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

import msgspec

from pagefall.insight.diagnosis.observations import Section
from pagefall.insight.diagnosis.replay import Sections

_SHORTEST: Final = 32
"""Shorter texts are not compared: "ok" and "ok " are two messages, no versions of a prompt."""

_CONTEXT: Final = 16
"""Characters shown on each side of a difference."""

_INVISIBLE: Final = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060\u00ad"))
_VISIBLE: Final = {"\r": "␍", "\n": "␊", "\t": "⇥", " ": "·", "\u00a0": "⍽"}


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Two versions of one text, as they are, and where the second was seen first. They differ from character
    `char_offset` on.
    """

    one: str
    other: str
    prompt: int
    message_index: int | None
    role: str | None
    char_offset: int


def plain(text: str) -> str:
    """`text` in Unicode's composed form, without invisible characters, every run of white space one space."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_INVISIBLE)
    return " ".join(text.split())


class PlainTexts:
    """Makes prompts plain. It remembers each text, since conversations repeat themselves."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def __call__(self, prompt: Sections) -> Sections:
        """Tools stay as they are: their white space is the server's."""
        return tuple(
            section
            if section.role == "tools"
            else Section(section.role, self.of(section.content), section.message_index)
            for section in prompt
        )

    def of(self, text: str) -> str:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = plain(text)
        return found


def find_drift(prompts: Iterable[Sections], plain_texts: PlainTexts) -> Drift | None:
    """The first text that comes in two versions: what it is without white space was seen before, with other."""
    seen: dict[tuple[str | None, str], str] = {}
    for number, prompt in enumerate(prompts):
        for section in prompt:
            if len(section.content) < _SHORTEST or section.role == "tools":
                continue
            before = seen.setdefault((section.role, plain_texts.of(section.content)), section.content)
            if before != section.content:
                return drift_between(before, section, number)
    return None


def drift_between(before: str, section: Section, prompt: int) -> Drift:
    """`section` is of prompt number `prompt`; `before` is what it was earlier."""
    offset = next(
        (index for index, (a, b) in enumerate(zip(before, section.content, strict=False)) if a != b),
        min(len(before), len(section.content)),
    )
    return Drift(
        one=before,
        other=section.content,
        prompt=prompt,
        message_index=section.message_index,
        role=section.role,
        char_offset=offset,
    )


def shown(text: str, offset: int) -> str:
    """The characters around `offset`, those that one does not see made visible."""
    start, end = max(0, offset - _CONTEXT), offset + _CONTEXT
    head, tail = "…" if start else "", "…" if end < len(text) else ""
    return head + "".join(_visible(character) for character in text[start:end]) + tail


def _visible(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    if character.isspace() or unicodedata.category(character) in ("Cc", "Cf", "Mn", "Co"):
        return f"<U+{ord(character):04X}>"
    # A letter that could be written as two: which of the ways it is does not show.
    return f"{character}<U+{ord(character):04X}>" if unicodedata.decomposition(character) else character
