from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as LibraryHistogram

from pagefall.metrics.histogram import Histogram

BOUNDS = (0.005, 0.1, 1.0, 30.0)


def test_a_value_on_a_bound_belongs_below_it() -> None:
    seen = Histogram(BOUNDS)
    seen.observe(0.1)
    assert seen.cumulative() == [("0.005", 0), ("0.1", 1), ("1.0", 1), ("30.0", 1), ("+Inf", 1)]


def test_a_value_may_count_several_times() -> None:
    seen = Histogram(BOUNDS)
    seen.observe(0.5, 3)
    seen.observe(100.0)
    assert (seen.count, seen.sum) == (4, 101.5)


@given(st.lists(st.floats(0, 100) | st.sampled_from(BOUNDS)))
def test_it_counts_as_the_librarys_own_does(values: list[float]) -> None:
    ours, registry = Histogram(BOUNDS), CollectorRegistry()
    theirs = LibraryHistogram("x", "x", buckets=BOUNDS, registry=registry)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    for end, count in ours.cumulative():
        assert registry.get_sample_value("x_bucket", {"le": end}) == count
    assert registry.get_sample_value("x_count") == ours.count
    assert registry.get_sample_value("x_sum") == ours.sum
