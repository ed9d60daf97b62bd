from __future__ import annotations

import pytest

from pagefall.insight.diagnosis.patterns import form_of, whole_value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("2026-11-30T02:14:05Z", "timestamp"),
        ("2026-11-30 02:14:05.123+01:00", "timestamp"),
        ("Mon, 30 Nov 2026 02:14:05 GMT", "timestamp"),
        ("Monday, November 30, 2026 at 2:14 PM", "timestamp"),
        ("2026-11-30", "date"),
        ("November 30th, 2026", "date"),
        ("30/11/2026", "date"),
        ("02:14:05", "time of day"),
        ("9:05 am", "time of day"),
        ("123e4567-e89b-12d3-a456-426614174000", "UUID"),
        ("1796004845", "Unix time"),
        ("1796004845123", "Unix time"),
        ("9f8a7c6b5d4e3f21", "hexadecimal id"),
        ("#4711", "number"),
        ("1,234.5", "number"),
        ("req_8sKq2ZpL", "random id"),
        ("session-42-ab", "random id"),
        ("Alice", "text"),
        ("deadbeef", "text"),
    ],
)
def test_a_value_is_called_by_its_form(value: str, form: str) -> None:
    assert form_of([value]) == form
    line = f"It is now {value} and so on"
    at = line.index(value) + len(value) - 2
    found = whole_value(line, at, at + 1)
    assert (line[found.start : found.end], found.form) == (value, form) or form == "text"


def test_numbers_that_only_rise_are_a_counter() -> None:
    assert form_of(["7", "8", "8", "12"]) == "counter"
    assert form_of(["7", "8", "3"]) == "number"
    assert form_of(["7", "8"]) == "number"


def test_values_of_several_forms_are_text() -> None:
    assert form_of(["2026-11-30", "Alice"]) == "text"


def test_a_form_inside_a_longer_value_is_named() -> None:
    assert form_of(["on 2026-11-30 for Ann", "on 2026-12-01 for Bob"]) == "text with a date"


def test_a_text_without_a_form_is_widened_to_whole_words() -> None:
    found = whole_value("You talk to Alexander today", 14, 15)
    assert (found.start, found.end, found.form) == (12, 21, "text")
