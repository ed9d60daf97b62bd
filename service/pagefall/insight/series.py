"""The last minutes of the server's life, in samples of equal distance: what a chart needs."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, get_args

import msgspec

from pagefall.insight.records import PrefixSource, RefusalReason, RequestRecord
from pagefall.messages import ControllerStats, Direction, SchedulerStats, Tier

SAMPLE_SECONDS: Final = 2.0
KEPT_SECONDS: Final = 900.0
_SMOOTHING_SECONDS: Final = 30.0
"""What a point of the hit rate's curve looks back: a prompt or two in two seconds would make it jump."""

_MAX_TTFTS: Final = 512
"""For each source: enough for a 90th percentile, and all there is to remember."""

_TIERS: Final[tuple[Tier, ...]] = get_args(Tier)
_SOURCES: Final[tuple[PrefixSource, ...]] = get_args(PrefixSource)
_DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)


class HitRate(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0..1) of the prompt tokens settled in the last `seconds`; all None where there were none.

    `total` is the sum of the tiers'; `ceiling` what a cache of unlimited size would have reached.
    """

    seconds: float
    num_prompt_tokens: int
    total: float | None
    by_tier: dict[Tier, float | None]
    ceiling: float | None


class TtftSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Of the latest requests with this source; None where there were none."""

    num_requests: int
    p50_seconds: float | None
    p90_seconds: float | None


class SeriesColumns(msgspec.Struct, frozen=True, kw_only=True):
    """All lists have one entry a sample, the oldest first. `times` are Unix seconds.

    `hit_rate` and `ceiling` look back `smoothing_seconds`, the rates and `ttft_seconds` (the median) to the sample
    before. None: nothing happened there that could be measured.
    """

    interval_seconds: float
    smoothing_seconds: float
    times: list[float]
    num_running: list[int]
    num_queued: list[int]
    hit_rate: dict[Tier, list[float | None]]
    ceiling: list[float | None]
    generated_tokens_per_second: list[float]
    transfer_bytes_per_second: dict[Direction, list[float]]
    ttft_seconds: dict[PrefixSource, list[float | None]]


@dataclass(slots=True, frozen=True)
class _Sample:
    """Counters as they stood at one moment. `at` is the clock's, `time` Unix time."""

    at: float
    time: float
    num_running: int
    num_queued: int
    num_prompt_tokens: int
    num_tokens_by_tier: tuple[int, ...]
    num_known_tokens: int
    num_generated_tokens: int
    num_bytes: tuple[int, ...]
    ttft_seconds: tuple[float | None, ...]


class TrafficSeries:
    """A `TrafficObserver`, and a ring of samples that somebody takes every `interval_seconds`."""

    def __init__(
        self,
        *,
        window_seconds: float,
        interval_seconds: float = SAMPLE_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """`window_seconds`: what `window` looks back, `kept_seconds` at most."""
        self.interval_seconds: Final = interval_seconds
        self._window_seconds = min(window_seconds, kept_seconds)
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._unix_clock = unix_clock
        self._started_at = clock()
        self.started_at: Final = unix_clock()
        # One more than are shown: the oldest is what the next one is measured against.
        self._samples: deque[_Sample] = deque(maxlen=math.ceil(kept_seconds / interval_seconds) + 1)
        self._ttfts: dict[PrefixSource, deque[tuple[float, float]]] = {
            source: deque(maxlen=_MAX_TTFTS) for source in _SOURCES
        }
        self._new_ttfts: dict[PrefixSource, deque[float]] = {source: deque(maxlen=_MAX_TTFTS) for source in _SOURCES}

    @property
    def uptime_seconds(self) -> float:
        return self._clock() - self._started_at

    def refused(self, reason: RefusalReason) -> None:
        pass

    def accepted(self, record: RequestRecord) -> None:
        pass

    def settled(self, record: RequestRecord) -> None:
        pass

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None:
        if gap_seconds is None and record.ttft_seconds is not None:
            self._ttfts[record.source].append((self._clock(), record.ttft_seconds))
            self._new_ttfts[record.source].append(record.ttft_seconds)

    def ended(self, record: RequestRecord) -> None:
        pass

    def sample(self, stats: SchedulerStats, controller: ControllerStats | None) -> None:
        """Keeps this moment, and forgets the oldest."""
        self._samples.append(self._moment(stats, controller))
        for ttfts in self._new_ttfts.values():
            ttfts.clear()

    def window(self, stats: SchedulerStats) -> HitRate:
        """The hit rate of the last `window_seconds`, of all time where the server is younger."""
        now = self._moment(stats, None)
        base = None
        if self.uptime_seconds > self._window_seconds:
            base = next((sample for sample in self._samples if sample.at >= now.at - self._window_seconds), None)
        return _hit_rate(base, now, self.uptime_seconds if base is None else now.at - base.at)

    def since_start(self, stats: SchedulerStats) -> HitRate:
        """The hit rate of all prompts."""
        return _hit_rate(None, self._moment(stats, None), self.uptime_seconds)

    def ttfts(self) -> dict[PrefixSource, TtftSummary]:
        """By source, of the last `kept_seconds` and a few hundred requests at most."""
        horizon = self._clock() - self._kept_seconds
        return {
            source: _summary(seconds for at, seconds in ttfts if at >= horizon) for source, ttfts in self._ttfts.items()
        }

    def columns(self, *, since: float | None = None) -> SeriesColumns:
        """The samples, or those whose `times` are later than `since`."""
        columns = SeriesColumns(
            interval_seconds=self.interval_seconds,
            smoothing_seconds=_SMOOTHING_SECONDS,
            times=[],
            num_running=[],
            num_queued=[],
            hit_rate={tier: [] for tier in _TIERS},
            ceiling=[],
            generated_tokens_per_second=[],
            transfer_bytes_per_second={direction: [] for direction in _DIRECTIONS},
            ttft_seconds={source: [] for source in _SOURCES},
        )
        for base, before, sample in self._triples():
            if since is None or sample.time > since:
                _append(columns, base, before, sample)
        return columns

    def _triples(self) -> Iterator[tuple[_Sample, _Sample, _Sample]]:
        """Each sample but the first, with the one before and the one that its smoothed values begin at."""
        samples = list(self._samples)
        first = 0
        for i, (before, sample) in enumerate(zip(samples, islice(samples, 1, None), strict=False)):
            # A late sample is measured against the one before at least.
            while first < i and samples[first].at < sample.at - _SMOOTHING_SECONDS:
                first += 1
            yield samples[first], before, sample

    def _moment(self, stats: SchedulerStats, controller: ControllerStats | None) -> _Sample:
        transfers = {} if controller is None else controller.transfers
        return _Sample(
            at=self._clock(),
            time=round(self._unix_clock(), 3),
            num_running=stats.num_running,
            num_queued=stats.num_queued,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_tokens_by_tier=(stats.num_device_tokens, stats.num_host_tokens, stats.num_storage_tokens),
            num_known_tokens=stats.num_known_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            num_bytes=tuple(
                transfers[direction].num_bytes if direction in transfers else 0 for direction in _DIRECTIONS
            ),
            ttft_seconds=tuple(_percentile(sorted(self._new_ttfts[source]), 0.5) for source in _SOURCES),
        )


def _append(columns: SeriesColumns, base: _Sample, before: _Sample, sample: _Sample) -> None:
    seconds = max(sample.at - before.at, 1e-9)
    rate = _hit_rate(base, sample, sample.at - base.at)
    columns.times.append(sample.time)
    columns.num_running.append(sample.num_running)
    columns.num_queued.append(sample.num_queued)
    for tier, share in rate.by_tier.items():
        columns.hit_rate[tier].append(share)
    columns.ceiling.append(rate.ceiling)
    num_generated = sample.num_generated_tokens - before.num_generated_tokens
    columns.generated_tokens_per_second.append(round(num_generated / seconds, 1))
    for direction, new, old in zip(_DIRECTIONS, sample.num_bytes, before.num_bytes, strict=True):
        columns.transfer_bytes_per_second[direction].append(round((new - old) / seconds))
    for source, ttft in zip(_SOURCES, sample.ttft_seconds, strict=True):
        columns.ttft_seconds[source].append(ttft)


def _hit_rate(base: _Sample | None, now: _Sample, seconds: float) -> HitRate:
    """Between two moments; `base` None: since the start."""
    num_prompt_tokens = now.num_prompt_tokens - (0 if base is None else base.num_prompt_tokens)
    before = (0,) * len(_TIERS) if base is None else base.num_tokens_by_tier
    by_tier = {tier: new - old for tier, new, old in zip(_TIERS, now.num_tokens_by_tier, before, strict=True)}

    def share(num_tokens: int) -> float | None:
        return round(num_tokens / num_prompt_tokens, 4) if num_prompt_tokens else None

    return HitRate(
        seconds=round(seconds, 1),
        num_prompt_tokens=num_prompt_tokens,
        total=share(sum(by_tier.values())),
        by_tier={tier: share(num_tokens) for tier, num_tokens in by_tier.items()},
        ceiling=share(now.num_known_tokens - (0 if base is None else base.num_known_tokens)),
    )


def _summary(seconds: Iterable[float]) -> TtftSummary:
    ordered = sorted(seconds)
    return TtftSummary(
        num_requests=len(ordered), p50_seconds=_percentile(ordered, 0.5), p90_seconds=_percentile(ordered, 0.9)
    )


def _percentile(ordered: list[float], share: float) -> float | None:
    """By nearest rank, to a tenth of a millisecond."""
    return round(ordered[max(math.ceil(share * len(ordered)) - 1, 0)], 4) if ordered else None
