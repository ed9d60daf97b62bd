from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.insight.diagnosis.alignment import MAX_SPAN, Gap, align, common_head

LONG = "and this goes on for much longer than it takes to be sure of it"


def test_a_short_piece_that_differs_is_a_gap() -> None:
    one, other = f"It is 09:00 now {LONG}", f"It is 17:30:00 now {LONG}"
    found = align(one, other)
    assert found.is_whole
    [gap] = found.gaps
    assert (one[: gap.start], one[gap.end :]) == (other[: gap.other_start], other[gap.other_end :])


def test_several_pieces_are_several_gaps() -> None:
    found = align(f"A {LONG} B {LONG}", f"X {LONG} Y {LONG}")
    assert found.is_whole
    assert [(gap.start, gap.end) for gap in found.gaps] == [(0, 1), (3 + len(LONG), 4 + len(LONG))]


def test_pieces_that_are_near_each_other_are_one() -> None:
    found = align(f"{LONG}1:2{LONG}", f"{LONG}5:6{LONG}")
    assert [(gap.start, gap.end) for gap in found.gaps] == [(len(LONG), len(LONG) + 3)]


def test_a_piece_may_be_missing_in_one_of_them() -> None:
    assert align(f"{LONG}{LONG}", f"{LONG} new {LONG}").gaps == (Gap(len(LONG), len(LONG), len(LONG), len(LONG) + 5),)


def test_a_piece_at_the_end_is_a_gap_to_the_end() -> None:
    assert align(f"{LONG} one", f"{LONG} 2").gaps == (Gap(len(LONG) + 1, len(LONG) + 4, len(LONG) + 1, len(LONG) + 2),)


def test_texts_that_go_apart_are_not_aligned() -> None:
    one, other = LONG + "a" * (MAX_SPAN + 50), LONG + "b" * (MAX_SPAN + 50)
    found = align(one, other)
    assert (found.gaps, found.is_whole) == ((), False)


@settings(deadline=None)
@given(st.text(alphabet="ab", max_size=200), st.text(alphabet="ab", max_size=200))
def test_the_common_head_is_counted_character_by_character(one: str, other: str) -> None:
    expected = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert common_head(one, other) == expected


@settings(deadline=None)
@given(st.text(alphabet="abc ", max_size=120), st.text(alphabet="abc ", max_size=120))
def test_outside_the_gaps_both_texts_are_the_same(one: str, other: str) -> None:
    found = align(one, other)
    start = other_start = 0
    for gap in found.gaps:
        assert one[start : gap.start] == other[other_start : gap.other_start]
        start, other_start = gap.end, gap.other_end
    if found.is_whole:
        assert one[start:] == other[other_start:]
