"""What a workload's runs say: latencies, throughput, and how much of what a cache could have served it did serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pagefall.bench.replay import Run, Sample
from pagefall.bench.report import Figure, Row, Statistic
from pagefall.messages import Tier

_TIERS: tuple[Tier, ...] = ("device", "host", "storage")
_NO_COUNTS = "the server does not count them"

Measure = Callable[[Run], Sequence[float] | None]
"""The samples of one row; None where the server does not tell."""


def run_figures(runs: Mapping[str, Run]) -> list[Figure]:
    """One row a figure, one target a run."""
    spreads: tuple[tuple[str, Statistic], ...] = (("mean", "mean"), ("p50", "median"), ("p95", "p95"))
    rows: list[tuple[Row, Measure]] = [
        *((Row(f"TTFT {name}", "ms", statistic), _ttfts_ms) for name, statistic in spreads),
        *((Row(f"ITL {name}", "ms", statistic), _gaps_ms) for name, statistic in spreads),
        (Row("requests a second", "req/s"), lambda run: (len(run.samples) / run.seconds,)),
        (Row("output", "tok/s"), lambda run: (sum(s.num_output_tokens for s in run.samples) / run.seconds,)),
        (Row("prompts", "tokens"), lambda run: (num_prompt_tokens(run.samples),)),
        (Row("cached", "tokens"), lambda run: _one(cached_tokens(run.samples))),
        *((Row(f"cached, {tier}", "tokens"), _cached_in(tier)) for tier in _TIERS),
        (Row("hit rate", "%"), lambda run: _one(hit_rate(run.samples))),
        (Row("ceiling", "%"), lambda run: (ceiling(run.samples),)),
        (Row("hit rate of the ceiling", "%"), lambda run: _one(share_of_ceiling(run.samples))),
    ]
    return [_figure(row, measure, runs) for row, measure in rows]


def part_figures(runs: Mapping[str, Run]) -> list[Figure]:
    """Mean TTFT, hit rate and ceiling of every part of the workload, in the order in which they were sent."""
    parts = list(dict.fromkeys(sample.part for run in runs.values() for sample in run.samples))
    figures: list[Figure] = []
    for part in parts:
        of_part = {
            label: Run(seconds=run.seconds, samples=tuple(s for s in run.samples if s.part == part))
            for label, run in runs.items()
        }
        figures += [
            _figure(Row(f"{part}: TTFT mean", "ms", "mean"), _ttfts_ms, of_part),
            _figure(Row(f"{part}: hit rate", "%"), lambda run: _one(hit_rate(run.samples)), of_part),
            _figure(Row(f"{part}: ceiling", "%"), lambda run: (ceiling(run.samples),), of_part),
        ]
    return figures


def num_prompt_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.num_prompt_tokens for sample in samples)


def cached_tokens(samples: Sequence[Sample], tier: Tier | None = None) -> int | None:
    """Prompt tokens that came from `tier`, or from any cache; None if the server counted those of no request."""
    if tier is None:
        counts = [sample.cached_tokens for sample in samples]
    else:
        tiers = [sample.cached_tokens_by_tier for sample in samples]
        counts = [None if by_tier is None else by_tier.get(tier, 0) for by_tier in tiers]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def hit_rate(samples: Sequence[Sample]) -> float | None:
    """Cached tokens in percent of all prompt tokens."""
    cached = cached_tokens(samples)
    return None if cached is None else 100 * cached / num_prompt_tokens(samples)


def ceiling(samples: Sequence[Sample]) -> float:
    """The hit rate of a cache that never forgets and has pages of one token, in percent."""
    return 100 * sum(sample.num_seen_tokens for sample in samples) / num_prompt_tokens(samples)


def share_of_ceiling(samples: Sequence[Sample]) -> float | None:
    """The hit rate in percent of the ceiling; None also where nothing could have been hit."""
    rate, most = hit_rate(samples), ceiling(samples)
    return None if rate is None or most == 0 else 100 * rate / most


def _ttfts_ms(run: Run) -> list[float]:
    return [1000 * sample.ttft_seconds for sample in run.samples]


def _gaps_ms(run: Run) -> list[float]:
    return [1000 * gap for sample in run.samples for gap in sample.gaps_seconds]


def _cached_in(tier: Tier) -> Measure:
    return lambda run: _one(cached_tokens(run.samples, tier))


def _one(value: float | None) -> tuple[float, ...] | None:
    return None if value is None else (value,)


def _figure(row: Row, measure: Measure, runs: Mapping[str, Run]) -> Figure:
    measured = {label: measure(run) for label, run in runs.items()}
    return Figure(
        row,
        {label: tuple(samples or ()) for label, samples in measured.items()},
        {label: _NO_COUNTS for label, samples in measured.items() if samples is None and runs[label].samples},
    )
