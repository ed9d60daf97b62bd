"""The result as a picture. Needs matplotlib, the extra `bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pagefall.bench.load.samples import RequestSample
from pagefall.bench.load.summary import Summary

_COLOURS: Final = ("#2f6fb5", "#d9822b")
_CEILING: Final = "#bbbbbb"
_INK: Final = "#222222"


def write_chart(
    path: Path, samples: Mapping[str, Sequence[RequestSample]], summaries: Mapping[str, Summary], *, title: str
) -> None:
    """A PNG of 1,920 by 1,080 pixels: TTFT and ITL as shares below a time, TTFT over the run, hits by part."""
    figure = Figure(
        figsize=(12.8, 7.2), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15), facecolor="white"
    )
    figure.suptitle(title, fontsize=13, color=_INK)
    grid = figure.subplots(2, 2)
    ttft, itl, over_time, hits = grid.flat
    for (label, taken), colour in zip(samples.items(), _COLOURS, strict=False):
        answered = [sample for sample in taken if sample.ttft_seconds is not None]
        ttfts = [1000 * (sample.ttft_seconds or 0.0) for sample in answered]
        _shares(ttft, ttfts, label, colour)
        _shares(itl, [1000 * gap for sample in answered for gap in sample.gaps_seconds], label, colour)
        over_time.plot([sample.sent_at for sample in answered], ttfts, ".", color=colour, label=label, markersize=5)
    for axes, name in ((ttft, "TTFT, ms"), (itl, "time between tokens, ms")):
        axes.set_xlabel(name)
        axes.set_ylabel("share of requests" if axes is ttft else "share of tokens")
        axes.set_ylim(0, 1)
    over_time.set_xlabel("sent at, s")
    over_time.set_ylabel("TTFT, ms")
    _hits(hits, summaries)
    for axes in grid.flat:
        axes.grid(visible=True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    ttft.legend(frameon=False)
    figure.savefig(path)


def _shares(axes: Axes, values: Sequence[float], label: str, colour: str) -> None:
    if values:
        axes.step(np.sort(values), np.arange(1, len(values) + 1) / len(values), where="post", color=colour, label=label)


def _hits(axes: Axes, summaries: Mapping[str, Summary]) -> None:
    """A group of bars for each part: what was possible, and what each target had."""
    parts = list(dict.fromkeys(name for summary in summaries.values() for name in summary.parts))
    width = 0.8 / (len(summaries) + 1)
    first = next(iter(summaries.values()))
    places = np.arange(len(parts))
    ceilings = [100 * first.parts[name].caching.ceiling if name in first.parts else 0.0 for name in parts]
    axes.bar(places - width, ceilings, width, color=_CEILING, label="possible")
    for number, ((label, summary), colour) in enumerate(zip(summaries.items(), _COLOURS, strict=False)):
        rates = [summary.parts[name].caching.hit_rate if name in summary.parts else None for name in parts]
        heights = [100 * (rate or 0.0) for rate in rates]
        axes.bar(places + number * width, heights, width, color=colour, label=label)
    axes.set_xticks(places, parts, rotation=20 if len(parts) > 4 else 0)
    axes.set_ylim(0, 100)
    axes.set_ylabel("hit rate, %")
    axes.legend(frameon=False)
