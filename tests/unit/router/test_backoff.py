from __future__ import annotations

import random

from pagefall.router.backoff import Backoff


def test_waits_double_up_to_the_most_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0, random.Random(1))
    waits = [backoff.next_seconds() for _ in range(6)]
    for wait, most in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert most / 2 <= wait <= most
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


def test_two_that_lost_the_same_server_come_back_at_different_times() -> None:
    waits = {Backoff(1.0, 8.0, random.Random(seed)).next_seconds() for seed in range(10)}
    assert len(waits) == 10
