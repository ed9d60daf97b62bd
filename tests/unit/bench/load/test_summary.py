from __future__ import annotations

import pytest

from pagefall.bench.load.samples import LoopLag, Run
from pagefall.bench.load.slo import Slo
from pagefall.bench.load.summary import caching, spread, summarise

from .samples import REFUSED, failed_sample, run, sample


def test_percentiles_lie_between_neighbours() -> None:
    found = spread([float(value) for value in range(101)])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p99, found.max) == (50, 50, 90, 99, 100)
    assert spread([]) is None


def test_latencies_are_those_of_answered_requests_that_count() -> None:
    filler = sample(is_measured=False, ttft_seconds=9.0, part="filler")
    summary = summarise([run(sample(), sample(ttft_seconds=0.4), filler, failed_sample())], None)
    assert (summary.num_requests, summary.num_failed) == (3, 1)
    assert summary.failures == {"status 503": 1}
    assert summary.ttft is not None
    assert summary.ttft.mean == pytest.approx(0.3)
    assert summary.itl is not None
    assert summary.itl.p50 == pytest.approx(0.1)
    assert summary.e2e is not None
    assert summary.e2e.max == pytest.approx(0.4)
    assert "filler" not in summary.parts


def test_throughput_is_over_the_time_of_all_runs() -> None:
    summary = summarise([run(sample(), sample(), seconds=1.0), run(sample(), seconds=3.0)], None)
    assert summary.seconds == 4
    assert summary.requests_per_second == 3 / 4
    assert summary.output_tokens_per_second == 9 / 4
    assert summary.prompt_tokens_per_second == 75


def test_tokens_that_come_together_are_noticed() -> None:
    summary = summarise([run(sample(num_output_tokens=9))], None)
    assert summary.tokens_per_event == 3
    assert summary.tpot is not None
    assert summary.tpot.mean == pytest.approx(0.2 / 8)


def test_hits_are_over_the_requests_that_tell_of_them() -> None:
    found = caching([sample(), sample(cached_tokens=None, num_prompt_tokens=300, num_seen_tokens=0)])
    assert found.hit_rate == 0.64
    assert found.ceiling == 80 / 400
    assert caching([sample(cached_tokens=None)]).hit_rate is None


def test_tiers_add_up_where_the_server_has_any() -> None:
    tiers = [{"device": 16, "host": 48}, {"device": 64}]
    found = caching([sample(cached_tokens_by_tier=by_tier) for by_tier in tiers])
    assert found.cached_tokens_by_tier == {"device": 80, "host": 48, "storage": 0}
    assert caching([sample()]).cached_tokens_by_tier is None


def test_goodput_counts_what_kept_the_limits_among_all_that_were_sent() -> None:
    runs = [run(sample(), sample(ttft_seconds=0.6), failed_sample(REFUSED), sample(due_at=0.6))]
    summary = summarise(runs, Slo(ttft=0.5))
    assert summary.goodput is not None
    assert summary.goodput.share == 1 / 4, "one came late, one failed, one waited for its place"
    assert summary.goodput.requests_per_second == 1 / 2
    assert summarise(runs, None).goodput is None


def test_what_was_held_back_is_counted() -> None:
    summary = summarise([run(sample(due_at=0.5), sample(due_at=0.995))], None)
    assert summary.num_delayed == 1
    assert summary.delay is not None
    assert summary.delay.max == 0.5
    assert summarise([run(sample())], None).delay is None


def test_parts_have_figures_of_their_own() -> None:
    summary = summarise(
        [run(sample(part="first", cached_tokens=0, num_seen_tokens=0), sample(), failed_sample())], None
    )
    assert list(summary.parts) == ["first", "later"]
    assert (summary.parts["later"].num_requests, summary.parts["later"].num_failed) == (2, 1)
    assert summary.parts["first"].caching.hit_rate == 0.0
    assert summary.parts["later"].caching.ceiling == 0.8


def test_the_lag_is_the_worst_of_the_runs() -> None:
    lags = [
        LoopLag(p50_seconds=0.001, p99_seconds=0.002, max_seconds=0.1),
        LoopLag(p50_seconds=0.0, p99_seconds=0.003, max_seconds=0.003),
    ]
    runs = [Run(target="self", repeat=0, seconds=1.0, samples=(), lag=lag) for lag in lags]
    assert summarise(runs, None).lag == LoopLag(p50_seconds=0.001, p99_seconds=0.003, max_seconds=0.1)


def test_a_run_of_nothing_but_failures_has_no_latencies_and_no_rates() -> None:
    summary = summarise([run(failed_sample())], Slo(ttft=1.0))
    assert (summary.ttft, summary.itl, summary.e2e, summary.caching.hit_rate) == (None, None, None, None)
    assert summary.requests_per_second == 0
