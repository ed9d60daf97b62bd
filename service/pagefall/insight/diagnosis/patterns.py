"""Texts that change with every prompt, recognised by their form."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_MONTH: Final = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_TIME: Final = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?: ?[AaPp]\.?[Mm]\.?)?(?: ?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2}))?"
_DAY: Final = (
    "(?:"
    + "|".join(
        [
            r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}",
            r"\d{1,2}[-/.]\d{1,2}[-/.]\d{4}",
            rf"{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}",
            rf"\d{{1,2}}\.? {_MONTH} \d{{4}}",
        ]
    )
    + ")"
)
_WEEKDAY: Final = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,? )?"

_FORMS: Final = (
    ("UUID", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("timestamp", re.compile(rf"{_WEEKDAY}\b{_DAY}(?:[T ]|,? (?:at )?){_TIME}")),
    ("date", re.compile(rf"{_WEEKDAY}\b{_DAY}\b")),
    ("time of day", re.compile(rf"\b{_TIME}")),
    ("Unix time", re.compile(r"\b1\d{9}(?:\d{3}|\d{6}|\d{9}|\.\d{1,9})?\b")),
    ("hexadecimal id", re.compile(r"\b(?:0x)?(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b")),
    ("number", re.compile(r"(?<![\w.])[#]?\d+(?:[.,]\d+)*(?![\w])")),
    ("random id", re.compile(r"(?<!\w)(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{6,}(?!\w)")),
)
"""The first form that fits wins; a number that is a year in a date is the date."""

_WINDOW: Final = 64
"""How far around a difference a form may reach."""

_PART_OF_WORD: Final = re.compile(r"[\w.:+/@-]")


class Span(NamedTuple):
    """Characters `[start, end)` of a text, and the form they have; "text" for none."""

    start: int
    end: int
    form: str


def whole_value(text: str, start: int, end: int) -> Span:
    """The value that `[start, end)` is a part of: what has one of the forms, else whole words.

    Two texts that agree before `start` are widened to the same start, if a form does not depend on what follows.
    """
    low, least_end = max(0, start - _WINDOW), end
    for form, pattern in _FORMS:
        for match in pattern.finditer(text, low, min(len(text), end + _WINDOW)):
            if match.start() <= start and match.end() >= end and match.end() > match.start():
                return Span(match.start(), match.end(), form)
    while start > low and start > 0 and _PART_OF_WORD.match(text[start - 1]):
        start -= 1
    while end < len(text) and end - start < _WINDOW and _PART_OF_WORD.match(text[end]):
        end += 1
    while end > least_end and text[end - 1] in ".:":
        end -= 1  # of the sentence, not of the word
    return Span(start, end, "text")


def form_of(values: Sequence[str]) -> str:
    """What to call `values`, in the order of their prompts: the form of all, "text with a ..." or "text"."""
    forms = {_form(value) for value in values}
    if forms != {"number"}:
        return forms.pop() if len(forms) == 1 else "text"
    numbers = [int(value) for value in values if value.isdecimal()]
    is_counter = len(numbers) == len(values) > 2 and all(a <= b for a, b in itertools.pairwise(numbers))
    return "counter" if is_counter else "number"


def _form(value: str) -> str:
    for form, pattern in _FORMS:
        if pattern.fullmatch(value):
            return form
    for form, pattern in _FORMS:
        if form not in ("number", "random id") and pattern.search(value):
            return f"text with a {form}"
    return "text"
