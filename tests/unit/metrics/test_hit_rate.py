from __future__ import annotations

import math
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.unit.metrics.records import record, report

from pagefall.metrics.hit_rate import HitRateWindow

WINDOW = 300.0
BUCKET = WINDOW / 60


@dataclass
class Clock:
    now: float = 10_000.0

    def __call__(self) -> float:
        return self.now


def rates(window: HitRateWindow) -> tuple[float, float]:
    return window.hit_rate(), window.ceiling()


def test_the_rate_is_the_share_of_tokens_not_of_requests() -> None:
    window = HitRateWindow(WINDOW, clock=Clock())
    window.settled(record(report(device=10, host=20, storage=30, computed=40, known=90)))
    window.settled(record(report(computed=80, unreached=20)))
    assert rates(window) == (0.3, 0.45)


def test_without_a_prompt_in_the_window_there_is_no_number() -> None:
    clock = Clock()
    window = HitRateWindow(WINDOW, clock=clock)
    assert all(map(math.isnan, rates(window)))
    window.settled(record(report(device=1, computed=1)))
    clock.now += WINDOW + BUCKET
    assert all(map(math.isnan, rates(window)))


def test_what_is_older_than_the_window_is_forgotten_and_nothing_else() -> None:
    clock = Clock()
    window = HitRateWindow(WINDOW, clock=clock)
    window.settled(record(report(computed=10)))
    clock.now += WINDOW - BUCKET
    window.settled(record(report(device=10)))
    assert window.hit_rate() == 0.5
    clock.now += BUCKET
    assert window.hit_rate() == 1.0


def test_a_clock_that_starts_at_zero_forgets_nothing() -> None:
    window = HitRateWindow(WINDOW, clock=Clock(now=0.0))
    window.settled(record(report(device=3, computed=1)))
    assert window.hit_rate() == 0.75


def test_its_memory_does_not_grow_with_the_traffic() -> None:
    clock = Clock()
    window = HitRateWindow(1.0, clock=clock)
    for _ in range(1000):
        clock.now += 0.01
        window.settled(record(report(device=1, computed=1)))
    assert len(window._ring) == 60
    assert window.hit_rate() == 0.5


TOKENS = st.integers(0, 50)
STEPS = st.tuples(st.floats(0, 2 * WINDOW), TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, st.floats(0, 1))


@given(st.lists(STEPS, max_size=30))
def test_for_any_history_it_says_what_adding_up_the_reports_says(steps: list[tuple[float, ...]]) -> None:
    clock = Clock()
    window = HitRateWindow(WINDOW, clock=clock)
    history: list[tuple[int, int, int, int]] = []
    for seconds, *counts, share in steps:
        clock.now += seconds
        device, host, storage, computed, unreached = map(int, counts)
        cached, total = device + host + storage, sum(map(int, counts))
        known = cached + int(share * (total - cached))
        window.settled(
            record(
                report(device=device, host=host, storage=storage, computed=computed, unreached=unreached, known=known)
            )
        )
        history.append((int(clock.now / BUCKET), total, cached, known))
    recent = [entry for entry in history if entry[0] > int(clock.now / BUCKET) - 60]
    total, cached, known = (sum(entry[field] for entry in recent) for field in (1, 2, 3))
    if total:
        assert window.hit_rate() == pytest.approx(cached / total)
        assert window.ceiling() == pytest.approx(known / total)
        assert 0 <= window.hit_rate() <= window.ceiling() <= 1
    else:
        assert all(map(math.isnan, rates(window)))
