from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagefall.text.stop import StopMatcher

stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple)


def first_match(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """The definition, letter by letter."""
    for end in range(1, len(text) + 1):
        ending = [string for string in stop if text[:end].endswith(string)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stop=stops, pushes=st.lists(st.text("abcd", max_size=6), max_size=8))
@example(stop=("abcd", "bc"), pushes=["ab", "cd"])
@example(stop=("aab",), pushes=["aaa", "b"])
def test_any_cut_of_the_text_gives_the_first_match(stop: tuple[str, ...], pushes: list[str]) -> None:
    matcher = StopMatcher(stop)
    sent = "".join(matcher.push(push) for push in pushes) + matcher.flush()
    assert (sent, matcher.matched) == first_match("".join(pushes), stop)


@given(stop=stops, text=st.text("abc", max_size=20))
def test_no_more_is_held_back_than_could_begin_a_stop_string(stop: tuple[str, ...], text: str) -> None:
    matcher = StopMatcher(stop)
    sent = "".join(matcher.push(character) for character in text)
    if matcher.matched is None:
        begins = [n for string in stop for n in range(len(string)) if text.endswith(string[:n])]
        assert len(text) - len(sent) == max(begins, default=0)


def test_text_after_the_match_is_dropped() -> None:
    matcher = StopMatcher(("\n\n",))
    assert matcher.push("one\n") == "one"
    assert matcher.push("\ntwo") == ""
    assert matcher.matched == "\n\n"
    assert matcher.push("three") == ""
    assert matcher.flush() == ""


def test_a_false_start_is_sent_as_soon_as_it_is_one() -> None:
    matcher = StopMatcher(("User:",))
    assert [matcher.push(text) for text in ("Us", "er", "s")] == ["", "", "Users"]
    assert matcher.flush() == ""


def test_text_held_back_at_the_end_is_flushed() -> None:
    matcher = StopMatcher(("###",))
    assert matcher.push("title ##") == "title "
    assert matcher.flush() == "##"


def test_stop_strings_may_be_any_text() -> None:
    matcher = StopMatcher(("👩‍👩‍👧", "끝"))
    assert matcher.push("가족 👩‍👩") == "가족 "
    assert matcher.push("‍👧 x") == ""
    assert matcher.matched == "👩‍👩‍👧"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopMatcher(("a", ""))


def test_repetitive_text_takes_linear_time() -> None:
    def seconds_for(length: int) -> float:
        matcher = StopMatcher(("a" * 500 + "b",))
        start = time.process_time()
        for _ in range(length // 100):
            matcher.push("a" * 100)
        return time.process_time() - start

    seconds_for(1000)
    assert seconds_for(200_000) < 40 * max(seconds_for(20_000), 0.001)
