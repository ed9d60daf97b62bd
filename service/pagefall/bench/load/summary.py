"""What the samples of a target say, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np

from pagefall.bench.load.samples import LoopLag, RequestSample, Run
from pagefall.bench.load.slo import Slo
from pagefall.messages import Tier

TIERS: Final[tuple[Tier, ...]] = ("device", "host", "storage")


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. Percentiles lie between neighbours by linear interpolation."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Caching(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens of answered requests, and how many were cached. None: the server does not say.

    `num_prompt_tokens` are all; the hit rate is over those whose answers say how many were cached. `ceiling`: the rate
    of a cache that never forgets, of the prompts in the order in which they were sent. Rates are between 0 and 1.
    """

    num_prompt_tokens: int
    cached_tokens: int | None
    cached_tokens_by_tier: dict[Tier, int] | None
    hit_rate: float | None
    ceiling: float


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the workload: the first turns, say, or the later ones."""

    num_requests: int
    num_failed: int
    ttft: Spread | None
    caching: Caching


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that kept the limits, as a share of all and per second."""

    share: float
    requests_per_second: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over the measured requests of one or several runs of one target. Times are in seconds.

    `itl` is over all gaps between events of all answers, `tpot` over answers: the time per output token after the
    first. They differ where an event brings more than one token: `tokens_per_event`. `delay`: how long after their time
    the requests of an open loop were sent, None in a closed one; `num_delayed` were more than 10 ms late.
    """

    num_requests: int
    num_failed: int
    failures: dict[str, int]
    seconds: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    delay: Spread | None
    num_delayed: int
    requests_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    num_output_tokens: int
    tokens_per_event: float
    caching: Caching
    goodput: Goodput | None
    parts: dict[str, Part]
    lag: LoopLag | None


_DELAYED_SECONDS: Final = 0.01


def summarise(runs: Sequence[Run], slo: Slo | None) -> Summary:
    """All runs together; those of one target."""
    samples = [sample for run in runs for sample in run.measured]
    good = [sample for sample in samples if sample.fault is None]
    seconds = sum(run.seconds for run in runs)
    failures = Counter(sample.fault.name for sample in samples if sample.fault is not None)
    due = [sample.delay_seconds for sample in samples if sample.due_at is not None]
    num_output_tokens = sum(sample.num_output_tokens for sample in good)
    num_events = sum(len(sample.gaps_seconds) + 1 for sample in good)
    num_kept = 0 if slo is None else sum(slo.is_met(sample) for sample in samples)
    return Summary(
        num_requests=len(samples),
        num_failed=len(samples) - len(good),
        failures=dict(failures.most_common()),
        seconds=seconds,
        ttft=spread(_ttfts(good)),
        itl=spread([gap for sample in good for gap in sample.gaps_seconds]),
        tpot=spread([sample.tpot_seconds for sample in good if sample.tpot_seconds is not None]),
        e2e=spread([sample.e2e_seconds for sample in good]),
        delay=spread(due),
        num_delayed=sum(delay > _DELAYED_SECONDS for delay in due),
        requests_per_second=_rate(len(good), seconds),
        prompt_tokens_per_second=_rate(sum(sample.num_prompt_tokens for sample in good), seconds),
        output_tokens_per_second=_rate(num_output_tokens, seconds),
        num_output_tokens=num_output_tokens,
        tokens_per_event=_rate(num_output_tokens, num_events),
        caching=caching(good),
        goodput=None
        if slo is None
        else Goodput(share=_rate(num_kept, len(samples)), requests_per_second=_rate(num_kept, seconds)),
        parts=_parts(samples),
        lag=_worst([run.lag for run in runs if run.lag is not None]),
    )


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values."""
    if not values:
        return None
    p50, p90, p99, most = np.percentile(values, (50, 90, 99, 100))
    return Spread(mean=float(np.mean(values)), p50=float(p50), p90=float(p90), p99=float(p99), max=float(most))


def caching(samples: Iterable[RequestSample]) -> Caching:
    """Of answered requests."""
    samples = list(samples)
    num_prompt_tokens = sum(sample.num_prompt_tokens for sample in samples)
    telling = [sample for sample in samples if sample.cached_tokens is not None]
    cached = sum(sample.cached_tokens or 0 for sample in telling)
    by_tier = [sample.cached_tokens_by_tier for sample in samples if sample.cached_tokens_by_tier is not None]
    return Caching(
        num_prompt_tokens=num_prompt_tokens,
        cached_tokens=cached if telling else None,
        cached_tokens_by_tier={tier: sum(tiers.get(tier, 0) for tiers in by_tier) for tier in TIERS}
        if by_tier
        else None,
        hit_rate=_rate(cached, sum(sample.num_prompt_tokens for sample in telling)) if telling else None,
        ceiling=_rate(sum(sample.num_seen_tokens for sample in samples), num_prompt_tokens),
    )


def _parts(samples: Sequence[RequestSample]) -> dict[str, Part]:
    """In the order in which they first ended."""
    found: dict[str, Part] = {}
    for name in dict.fromkeys(sample.part for sample in samples):
        of_part = [sample for sample in samples if sample.part == name]
        good = [sample for sample in of_part if sample.fault is None]
        found[name] = Part(
            num_requests=len(of_part),
            num_failed=len(of_part) - len(good),
            ttft=spread(_ttfts(good)),
            caching=caching(good),
        )
    return found


def _ttfts(samples: Iterable[RequestSample]) -> list[float]:
    return [sample.ttft_seconds for sample in samples if sample.ttft_seconds is not None]


def _rate(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def _worst(lags: Sequence[LoopLag]) -> LoopLag | None:
    """The larger of each figure."""
    if not lags:
        return None
    return LoopLag(
        p50_seconds=max(lag.p50_seconds for lag in lags),
        p99_seconds=max(lag.p99_seconds for lag in lags),
        max_seconds=max(lag.max_seconds for lag in lags),
    )
