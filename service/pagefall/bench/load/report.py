"""The figures as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pagefall.bench.load.comparison import Compared
from pagefall.bench.load.plan import Plan
from pagefall.bench.load.presets import PRESETS
from pagefall.bench.load.samples import Run
from pagefall.bench.load.summary import TIERS, Caching, Spread, Summary
from pagefall.bench.report import align

_NOT_TOLD: Final = "n/a"
_LAGGING_SECONDS: Final = 0.005


def heading(plan: Plan, targets: Mapping[str, str], *, seed: int, repeats: int) -> str:
    """What was asked, of whom: some lines. `targets` says what each label stands for."""
    lines = [f"{label}: {name}" for label, name in targets.items()]
    shape = {name: value for name, value in msgspec.structs.asdict(plan.shape).items() if value is not None}
    sizes = ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in shape.items())
    workload = f"{plan.shape.__struct_config__.tag}: {sizes}"
    if plan.preset is not None:
        lines.append(f"preset {plan.preset} ({PRESETS[plan.preset].source})")
    lines.append(workload if plan.scale == 1 else f"{workload}; scale {plan.scale:g}")
    lines.append(f"{plan.pace}; seed {seed}, {_plural(repeats, 'repeat')}")
    return "\n".join(lines) + "\n"


def summary_text(label: str, summary: Summary, runs: Sequence[Run]) -> str:
    """One target: latencies, then everything that is one figure, then the parts of the workload."""
    head = [label, "mean", "p50", "p90", "p99", "max", "unit"]
    spreads = (
        ("TTFT", summary.ttft),
        ("ITL", summary.itl),
        ("time per token", summary.tpot),
        ("end to end", summary.e2e),
        ("sent late", summary.delay),
    )
    rows = [head, *([name, *_ms(spread), "ms"] for name, spread in spreads if spread is not None)]
    lines = [*align(rows), "", *align_left(list(_lines(summary, runs))), "", *_parts(summary)]
    return "\n".join(lines) + "\n"


def comparison_text(compared: Sequence[Compared], own: str, peer: str) -> str:
    """Both targets, and the ratio in the middle of its repeats with its least and greatest."""
    rows = [["", own, peer, f"{own}/{peer}", "least", "most", "unit"]]
    for figure in compared:
        scale, unit = {"s": (1000, "ms"), "share": (100, "%")}.get(figure.unit, (1, figure.unit))
        values = [None if value is None else value * scale for value in (figure.own, figure.peer)]
        ratios = [f"{ratio:.2f}" if ratio is not None else "-" for ratio in (figure.ratio, figure.low, figure.high)]
        rows.append([figure.name, *map(_number, values), *ratios, unit])
    return "\n".join(align(rows)) + "\n"


def align_left(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Names, and what is said of them, in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    return [f"{name.ljust(width)}  {text}" for name, text in rows]


def _lines(summary: Summary, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    answered = summary.num_requests - summary.num_failed
    yield "requests", f"{answered:,} answered, {summary.num_failed:,} failed, in {summary.seconds:.1f} s"
    rates = (
        f"{_number(summary.requests_per_second)} req/s",
        f"{_number(summary.prompt_tokens_per_second)} prompt tok/s",
        f"{_number(summary.output_tokens_per_second)} output tok/s",
    )
    yield "throughput", ", ".join(rates)
    yield "hit rate", _hits(summary.caching)
    if summary.goodput is not None:
        share = f"{summary.goodput.share:.1%} of requests kept the SLO"
        yield "goodput", f"{_number(summary.goodput.requests_per_second)} req/s, {share}"
    if summary.delay is not None:
        yield "held back", f"{_plural(summary.num_delayed, 'request')} sent more than 10 ms after their time"
    if summary.tokens_per_event > 1.05:
        yield "events", f"{summary.tokens_per_event:.2f} tokens each: ITL is between events, not tokens"
    if summary.lag is not None:
        lag = summary.lag
        text = f"own loop late by {1000 * lag.p50_seconds:.1f} ms p50, {1000 * lag.p99_seconds:.1f} p99"
        doubt = "; too busy to be exact" if lag.p99_seconds > _LAGGING_SECONDS else ""
        yield "client", f"{text}, {1000 * lag.max_seconds:.1f} max{doubt}"
    for name, count in summary.failures.items():
        yield "failures", f"{count:,} {name}: {_example(name, runs)}"
    for run in runs:
        if run.note is not None:
            yield "cut short", run.note


def _hits(caching: Caching) -> str:
    ceiling = f"{caching.ceiling:.1%} possible"
    if caching.hit_rate is None:
        return f"{_NOT_TOLD}: the server does not say how many tokens were cached; {ceiling}"
    tiers = caching.cached_tokens_by_tier
    told = caching.num_prompt_tokens
    by_tier = "" if tiers is None or not told else "; " + ", ".join(f"{t} {tiers.get(t, 0) / told:.1%}" for t in TIERS)
    return f"{caching.hit_rate:.1%} of {told:,} prompt tokens, {ceiling}{by_tier}"


def _parts(summary: Summary) -> list[str]:
    """A line each; with the tiers that hits came from, where the server has any."""
    tiers = TIERS if summary.caching.cached_tokens_by_tier is not None else ()
    rows = [["part", "requests", "TTFT mean", "p50", "p90", "hit rate", "possible", *tiers]]
    for name, part in summary.parts.items():
        ttft = ["-"] * 3 if part.ttft is None else _ms(part.ttft)[:3]
        caching = part.caching
        rate = _NOT_TOLD if caching.hit_rate is None else f"{caching.hit_rate:.1%}"
        shares = [_share((caching.cached_tokens_by_tier or {}).get(t, 0), caching.num_prompt_tokens) for t in tiers]
        rows.append([name, f"{part.num_requests:,}", *ttft, rate, f"{caching.ceiling:.1%}", *shares])
    return align(rows)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _example(name: str, runs: Sequence[Run]) -> str:
    faults = (sample.fault for run in runs for sample in run.measured if sample.fault is not None)
    return next((fault.message for fault in faults if fault.name == name), "")


def _ms(spread: Spread) -> list[str]:
    return [_number(1000 * value) for value in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)]


def _number(value: float | None) -> str:
    """Three significant digits, and every digit in front of the point."""
    if value is None:
        return _NOT_TOLD
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:#.3g}"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
