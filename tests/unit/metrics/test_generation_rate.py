from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metrics.records import record

from pagefall.metrics.generation_rate import GenerationRate

RECORD = record()


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_steady_pace_is_the_rate_from_the_first_second_on(clock: Clock) -> None:
    rate = GenerationRate(clock=clock)
    for tenth in range(1, 400):
        clock.now = 100 + tenth / 10
        rate.progressed(RECORD, 3, 0.1)
        if tenth >= 10:
            assert rate.tokens_per_second() == pytest.approx(30, rel=0.05)


def test_it_is_zero_before_the_first_token_and_again_when_the_last_is_long_ago(clock: Clock) -> None:
    rate = GenerationRate(clock=clock)
    assert rate.tokens_per_second() == 0
    rate.progressed(RECORD, 50, None)
    clock.now += 5
    assert rate.tokens_per_second() == 10
    clock.now += 6
    assert rate.tokens_per_second() == 0


def test_a_first_token_at_once_is_no_enormous_rate(clock: Clock) -> None:
    rate = GenerationRate(clock=clock)
    rate.progressed(RECORD, 1, None)
    assert rate.tokens_per_second() == 2


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 9)), max_size=60))
def test_no_token_of_the_last_ten_seconds_is_missed_and_none_counts_for_eleven(events: list[tuple[float, int]]) -> None:
    clock = Clock()
    rate = GenerationRate(clock=clock)
    seen: list[tuple[float, int]] = []
    for gap, num_tokens in events:
        clock.now += gap
        rate.progressed(RECORD, num_tokens, gap)
        seen.append((clock.now, num_tokens))
    clock.now = max(clock.now, 120)
    recent = [sum(n for at, n in seen if clock.now - at < seconds) for seconds in (10, 11)]
    assert recent[0] / 10.5 <= rate.tokens_per_second() + 1e-9
    assert rate.tokens_per_second() <= recent[1] / 10 + 1e-9
