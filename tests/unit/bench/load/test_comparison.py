from __future__ import annotations

import pytest

from pagefall.bench.load.comparison import compare
from pagefall.bench.load.samples import Run

from .samples import failed_sample, run, sample


def runs(target: str, *ttfts: float) -> list[Run]:
    """A run for each repeat."""
    return [run(sample(ttft_seconds=ttft), target=target, repeat=number) for number, ttft in enumerate(ttfts)]


def test_ratios_are_within_repeats_and_have_a_spread() -> None:
    found = {figure.name: figure for figure in compare(runs("self", 1, 2, 9), runs("peer", 2, 2, 10), None)}
    ttft = found["TTFT p50"]
    assert (ttft.own, ttft.peer) == (2, 2), "over all repeats together"
    assert (ttft.ratio, ttft.low, ttft.high) == (0.9, 0.5, 1.0)
    assert found["hit rate"].ratio == 1.0
    assert "goodput" not in found


def test_a_repeat_that_only_one_of_them_has_is_in_no_ratio() -> None:
    (ttft, *_) = compare(runs("self", 1, 5), runs("peer", 2), None)
    assert (ttft.own, ttft.ratio, ttft.low, ttft.high) == (3, 0.5, 0.5, 0.5)


def test_what_one_does_not_tell_has_no_ratio() -> None:
    silent = [run(sample(cached_tokens=None), target="peer")]
    hits = next(figure for figure in compare([run(sample())], silent, None) if figure.name == "hit rate")
    assert hits.own == pytest.approx(0.64)
    assert (hits.peer, hits.ratio) == (None, None)


def test_figures_that_neither_has_are_left_out() -> None:
    names = [figure.name for figure in compare([run(failed_sample())], [run(failed_sample())], None)]
    assert names == ["requests", "output"]
