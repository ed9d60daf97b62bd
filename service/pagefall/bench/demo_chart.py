"""The demo's chart: one bar a case, its colour the tier that served it. Needs matplotlib, the extra `demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from pagefall.bench.demo_plan import Source
from pagefall.bench.demo_report import DemoResult, DemoRow, seconds_text

_COLOURS: Final[dict[Source, str]] = {
    "computed": "#9a9a9a",
    "device": "#1b7f4d",
    "host": "#2f6fb5",
    "storage": "#d9822b",
}
_INK: Final = "#222222"
_QUIET: Final = "#666666"
_TITLE: Final = "Time to the first token, by where the prompt's pages were"


def write_chart(result: DemoResult, path: Path) -> None:
    """Writes a PNG of 1,920 by 1,080 pixels, readable from the back of a room."""
    rows = result.rows
    margins = ConstrainedLayoutEngine(w_pad=0.3, h_pad=0.3)
    figure = Figure(figsize=(12.8, 7.2), dpi=150, layout=margins, facecolor="white")
    axes = figure.add_subplot()
    bars = axes.barh(
        range(len(rows)),
        [row.ttft_seconds for row in rows],
        color=[_COLOURS[row.served_by] for row in rows],
        height=0.62,
    )
    axes.bar_label(bars, [_label(result, row) for row in rows], padding=8, fontsize=15, color=_INK)
    axes.set_yticks(range(len(rows)), [row.case for row in rows], fontsize=15, color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.1 * max(row.ttft_seconds for row in rows))
    axes.xaxis.set_visible(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(_TITLE, loc="left", fontsize=21, color=_INK, pad=34)
    subtitle = f"a prompt of {rows[0].num_prompt_tokens:,} tokens, {result.model}"
    axes.text(0, 1.02, subtitle, transform=axes.transAxes, fontsize=14, color=_QUIET)
    shown = {row.served_by for row in rows}
    patches = [Patch(color=colour, label=name) for name, colour in _COLOURS.items() if name in shown]
    axes.legend(handles=patches, loc="lower right", frameon=False, fontsize=14, labelcolor=_INK)
    figure.savefig(path)


def _label(result: DemoResult, row: DemoRow) -> str:
    """The time, and how much faster than cold where a cache had a part in it."""
    time = seconds_text(row.ttft_seconds)
    return time if row.served_by == "computed" else f"{time}   {result.speed_up(row):.0f}x faster"
