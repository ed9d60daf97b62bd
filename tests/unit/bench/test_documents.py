from __future__ import annotations

import random

from pagefall.bench.documents import ships_log


def test_a_log_is_about_as_long_as_asked_and_readable() -> None:
    text = ships_log(random.Random(0), num_words=800)
    assert 800 <= len(text.split()) < 900
    assert text.startswith("Log of the ")
    assert "\n\nDay 2. Wind " in text


def test_two_logs_of_one_voyage_are_told_apart_within_a_page() -> None:
    rng = random.Random(0)
    first, second = (ships_log(rng, num_words=100) for _ in range(2))
    assert first[:100] != second[:100]
