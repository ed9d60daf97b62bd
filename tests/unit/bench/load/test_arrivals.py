from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from pagefall.bench.load.arrivals import arrival_times


def gaps(request_rate: float, burstiness: float = 1.0, seed: int = 1) -> list[float]:
    times = itertools.islice(arrival_times(request_rate, random.Random(seed), burstiness=burstiness), 20_000)
    return [after - before for before, after in itertools.pairwise([0.0, *times])]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_rate_holds_in_the_mean_and_burstiness_sets_the_spread(burstiness: float) -> None:
    found = gaps(8.0, burstiness)
    assert np.mean(found) == pytest.approx(1 / 8, rel=0.05)
    variation = np.std(found) / np.mean(found)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.05), "of a gamma distribution"


def test_a_poisson_process_has_poisson_counts() -> None:
    times = np.cumsum(gaps(10.0))
    counts = np.bincount(times.astype(int))[:1_500]
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, rel=0.1)


def test_one_seed_makes_the_same_times() -> None:
    assert gaps(3.0, seed=5) == gaps(3.0, seed=5) != gaps(3.0, seed=6)
