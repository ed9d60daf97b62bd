from __future__ import annotations

import anyio
import numpy as np
import pytest

from pagefall.insight.records import RequestRecord
from pagefall.insight.sampling import sampling
from pagefall.insight.series import TrafficSeries
from pagefall.messages import (
    ControllerStats,
    PoolStats,
    PrefixReport,
    RequestId,
    SchedulerStats,
    TokenSource,
    TransferStats,
)

START = 1_700_000_000.0


class Clocks:
    """Both clocks of a series, moved by hand."""

    def __init__(self) -> None:
        self.elapsed = 0.0

    def monotonic(self) -> float:
        return 50.0 + self.elapsed

    def unix(self) -> float:
        return START + self.elapsed


def make_series(clocks: Clocks, *, window_seconds: float = 300.0, kept_seconds: float = 900.0) -> TrafficSeries:
    return TrafficSeries(
        window_seconds=window_seconds, kept_seconds=kept_seconds, clock=clocks.monotonic, unix_clock=clocks.unix
    )


def stats(
    *, prompt: int = 0, device: int = 0, host: int = 0, storage: int = 0, known: int = 0, generated: int = 0
) -> SchedulerStats:
    return SchedulerStats(
        num_running=1,
        num_queued=2,
        device_pages=PoolStats(total=4, free=4, leased=0, cached=0, pinned=0),
        num_prompt_tokens=prompt,
        num_cached_tokens=device + host + storage,
        num_device_tokens=device,
        num_host_tokens=host,
        num_storage_tokens=storage,
        num_known_tokens=known,
        num_generated_tokens=generated,
    )


def record(ttft: float, source: TokenSource) -> RequestRecord:
    """One that got its first token `ttft` seconds after it came."""
    return RequestRecord(
        request_id=RequestId("r"),
        prompt=None,
        token_ids=np.zeros(4, np.uint32),
        cache_salt="",
        max_tokens=1,
        arrived_at=START,
        began_at=0.0,
        first_token_at=ttft,
        report=PrefixReport(
            page_size=4, num_prompt_tokens=4, num_tokens_by_source={source: 4}, num_known_tokens=0, misses=()
        ),
    )


def test_rates_are_taken_from_the_sample_before() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    series.sample(stats(generated=100), None)
    clocks.elapsed = 2.0
    moved = ControllerStats(transfers={"device_to_host": TransferStats(num_bytes=6000)})
    series.sample(stats(generated=130), moved)
    columns = series.columns()
    assert columns.times == [START + 2]
    assert columns.generated_tokens_per_second == [15.0]
    assert columns.transfer_bytes_per_second["device_to_host"] == [3000]
    assert columns.transfer_bytes_per_second["storage_to_host"] == [0]
    assert (columns.num_running, columns.num_queued) == ([1], [2])


def test_a_rate_is_right_when_a_sample_was_late() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    series.sample(stats(), None)
    clocks.elapsed = 8.0
    series.sample(stats(generated=80), None)
    assert series.columns().generated_tokens_per_second == [10.0]


def test_the_hit_rate_is_smoothed_by_tier_and_none_where_no_prompt_was_settled() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    prompt = 0
    for second in range(0, 102, 2):
        clocks.elapsed = float(second)
        if second == 10:
            prompt = 200
        series.sample(stats(prompt=prompt, device=prompt // 2, host=prompt // 4, known=prompt), None)
    columns = series.columns()
    by_time = dict(zip((time - START for time in columns.times), columns.hit_rate["device"], strict=True))
    assert by_time[8.0] is None
    assert by_time[10.0] == 0.5
    assert by_time[38.0] == 0.5  # the prompt is still within 30 seconds
    assert by_time[42.0] is None
    assert columns.hit_rate["host"][columns.times.index(START + 20)] == 0.25
    assert columns.hit_rate["storage"][columns.times.index(START + 20)] == 0.0
    assert columns.ceiling[columns.times.index(START + 20)] == 1.0


def test_the_ring_forgets_the_oldest_samples() -> None:
    clocks = Clocks()
    series = make_series(clocks, kept_seconds=10.0)
    for second in range(0, 40, 2):
        clocks.elapsed = float(second)
        series.sample(stats(generated=second), None)
    columns = series.columns()
    assert columns.times == [START + second for second in (30, 32, 34, 36, 38)]
    # The sample before the oldest one is still there to measure it against.
    assert columns.generated_tokens_per_second == [1.0] * 5


def test_only_later_samples_are_given_to_who_has_the_others() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    for second in (0, 2, 4, 6):
        clocks.elapsed = float(second)
        series.sample(stats(generated=second * 3), None)
    assert series.columns(since=START + 2).times == [START + 4, START + 6]
    assert series.columns(since=START + 2).generated_tokens_per_second == [3.0, 3.0]
    assert series.columns(since=START + 99).times == []


def test_the_window_looks_back_so_far_and_no_farther() -> None:
    clocks = Clocks()
    series = make_series(clocks, window_seconds=10.0)
    for second in range(0, 32, 2):
        clocks.elapsed = float(second)
        # 100 tokens a second; cached from the twentieth second on.
        series.sample(stats(prompt=100 * second, device=100 * max(second - 20, 0)), None)
    now = stats(prompt=3000, device=1000)
    window = series.window(now)
    assert (window.seconds, window.num_prompt_tokens, window.total) == (10.0, 1000, 1.0)
    always = series.since_start(now)
    assert (always.seconds, always.num_prompt_tokens, always.total) == (30.0, 3000, 0.3333)


def test_the_window_of_a_young_server_is_its_whole_life() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    clocks.elapsed = 1.0
    series.sample(stats(prompt=10), None)
    clocks.elapsed = 3.0
    window = series.window(stats(prompt=40, device=4, host=8, storage=16, known=36))
    assert (window.seconds, window.num_prompt_tokens, window.total) == (3.0, 40, 0.7)
    assert window.by_tier == {"device": 0.1, "host": 0.2, "storage": 0.4}
    assert window.ceiling == 0.9


def test_there_is_no_hit_rate_without_prompts() -> None:
    window = make_series(Clocks()).window(stats())
    assert (window.total, window.ceiling, set(window.by_tier.values())) == (None, None, {None})


def test_times_to_the_first_token_are_summed_up_by_source() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    for ttft in (0.3, 0.1, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        series.progressed(record(ttft, "host"), 1, None)
    series.progressed(record(9.0, "computed"), 1, None)
    host = series.ttfts()["host"]
    assert (host.num_requests, host.p50_seconds, host.p90_seconds) == (10, 0.5, 0.9)
    assert series.ttfts()["none"].p50_seconds == 9.0
    assert series.ttfts()["storage"].p50_seconds is None


def test_only_the_first_token_counts() -> None:
    series = make_series(Clocks())
    series.progressed(record(0.1, "device"), 1, None)
    series.progressed(record(0.1, "device"), 1, 0.01)
    assert series.ttfts()["device"].num_requests == 1


def test_times_to_the_first_token_are_forgotten_with_the_samples() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    series.progressed(record(0.1, "device"), 1, None)
    clocks.elapsed = 901.0
    assert series.ttfts()["device"].num_requests == 0


def test_a_sample_has_the_median_of_the_first_tokens_since_the_one_before() -> None:
    clocks = Clocks()
    series = make_series(clocks)
    series.sample(stats(), None)
    for ttft in (0.3, 0.1, 0.2):
        series.progressed(record(ttft, "device"), 1, None)
    for second in (2, 4):
        clocks.elapsed = float(second)
        series.sample(stats(), None)
    assert series.columns().ttft_seconds["device"] == [0.2, None]


@pytest.mark.anyio
async def test_the_first_sample_is_taken_at_once_and_none_after_the_end() -> None:
    series = make_series(Clocks())
    taken = 0

    def counted() -> SchedulerStats:
        nonlocal taken
        taken += 1
        return stats()

    async with sampling(series, counted, lambda: None):
        while taken == 0:
            await anyio.sleep(0)
    ended_with = taken
    await anyio.sleep(0)
    assert (taken, ended_with) == (1, 1)
