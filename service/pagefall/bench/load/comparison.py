"""Two servers beside each other: each figure of both, and their ratio with its spread over the repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from pagefall.bench.load.samples import Run
from pagefall.bench.load.slo import Slo
from pagefall.bench.load.summary import Spread, Summary, summarise

Unit = Literal["s", "req/s", "tok/s", "share"]
Value = Callable[[Summary], float | None]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `own` and `peer` are over all repeats, None where there is none; `ratio` is the median of own over
    peer in each repeat that both have, `low` and `high` its least and its greatest.
    """

    name: str
    unit: Unit
    own: float | None
    peer: float | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def _of(name: Literal["ttft", "itl", "tpot", "e2e"], percentile: Literal["mean", "p50", "p90", "p99"]) -> Value:
    def value(summary: Summary) -> float | None:
        spread: Spread | None = getattr(summary, name)
        return None if spread is None else getattr(spread, percentile)

    return value


_FIGURES: Final[tuple[tuple[str, Unit, Value], ...]] = (
    ("TTFT mean", "s", _of("ttft", "mean")),
    ("TTFT p50", "s", _of("ttft", "p50")),
    ("TTFT p90", "s", _of("ttft", "p90")),
    ("TTFT p99", "s", _of("ttft", "p99")),
    ("ITL mean", "s", _of("itl", "mean")),
    ("ITL p50", "s", _of("itl", "p50")),
    ("ITL p99", "s", _of("itl", "p99")),
    ("time per token, mean", "s", _of("tpot", "mean")),
    ("end to end mean", "s", _of("e2e", "mean")),
    ("end to end p90", "s", _of("e2e", "p90")),
    ("requests", "req/s", lambda summary: summary.requests_per_second),
    ("output", "tok/s", lambda summary: summary.output_tokens_per_second),
    ("hit rate", "share", lambda summary: summary.caching.hit_rate),
    ("goodput", "req/s", lambda summary: None if summary.goodput is None else summary.goodput.requests_per_second),
)


def compare(own: Sequence[Run], peer: Sequence[Run], slo: Slo | None) -> list[Compared]:
    """Figure by figure; those that neither server has are left out. Runs belong together by their repeat."""
    totals = summarise(own, slo), summarise(peer, slo)
    own_by_repeat, peer_by_repeat = _by_repeat(own, slo), _by_repeat(peer, slo)
    shared = [repeat for repeat in own_by_repeat if repeat in peer_by_repeat]
    found: list[Compared] = []
    for name, unit, value in _FIGURES:
        own_value, peer_value = map(value, totals)
        if own_value is None and peer_value is None:
            continue
        pairs = [(value(own_by_repeat[repeat]), value(peer_by_repeat[repeat])) for repeat in shared]
        ratios = [mine / theirs for mine, theirs in pairs if mine is not None and theirs]
        spread = (float(np.median(ratios)), min(ratios), max(ratios)) if ratios else (None, None, None)
        found.append(
            Compared(
                name=name,
                unit=unit,
                own=own_value,
                peer=peer_value,
                ratio=spread[0],
                low=spread[1],
                high=spread[2],
            )
        )
    return found


def _by_repeat(runs: Sequence[Run], slo: Slo | None) -> Mapping[int, Summary]:
    return {run.repeat: summarise([run], slo) for run in runs}
