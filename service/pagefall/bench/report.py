"""Figures, their statistics, the table that people read and the JSON that machines read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

Statistic = Literal["median", "mean", "p95", "p99", "max"]


class Row(msgspec.Struct, frozen=True):
    """What one line of the report is about, and the statistic that sums its samples up."""

    name: str
    unit: Literal["ms", "tok/s", "req/s", "tokens", "%"]
    statistic: Statistic = "median"


class Figure(msgspec.Struct, frozen=True):
    """A row with the samples of each target, in the row's unit. `notes` says why a target has none."""

    row: Row
    samples: dict[str, tuple[float, ...]]
    notes: dict[str, str] = {}

    def value(self, target: str) -> float | None:
        """The statistic over the target's samples, None without samples."""
        samples = self.samples.get(target)
        return summarise(samples, self.row.statistic) if samples else None


def summarise(samples: Sequence[float], statistic: Statistic) -> float:
    """The statistic of at least one sample; percentiles lie between neighbours by linear interpolation."""
    match statistic:
        case "mean":
            return float(np.mean(samples))
        case "median" | "p95" | "p99" | "max":
            return float(np.percentile(samples, {"median": 50, "p95": 95, "p99": 99, "max": 100}[statistic]))


def table(figures: Sequence[Figure], targets: Sequence[str]) -> str:
    """The figures as lines of text, then each note once, with the first row that it is about.

    With several targets there is a column for each but the last, with its value over the last one's.
    """
    *others, last = targets
    rows = [["", *targets, *(f"{target}/{last}" for target in others), "unit"]]
    for figure in figures:
        *values, base = [figure.value(target) for target in targets]
        cells = ["-" if value is None else _round(value) for value in (*values, base)]
        cells += ["-" if value is None or not base else f"{value / base:.2f}" for value in values]
        rows.append([figure.row.name, *cells, figure.row.unit])
    notes: dict[tuple[str, str], str] = {}
    for figure in figures:
        for target, note in figure.notes.items():
            notes.setdefault((target, note), figure.row.name)
    lines = [f"{name}, {target}: {note}" for (target, note), name in notes.items()]
    return "\n".join([*align(rows), *lines]) + "\n"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equal length as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def to_json(figures: Sequence[Figure], targets: Mapping[str, str], settings: object, **more: object) -> bytes:
    """Everything that was measured, every sample included. `targets` says what each label stands for, `more` are
    further entries of the document.
    """
    document = {
        "settings": settings,
        "targets": dict(targets),
        "figures": [
            {
                "name": figure.row.name,
                "unit": figure.row.unit,
                "statistic": figure.row.statistic,
                "values": {target: figure.value(target) for target in targets},
                "samples": figure.samples,
                "notes": figure.notes,
            }
            for figure in figures
        ],
        **more,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _round(value: float) -> str:
    """Three significant digits, and every digit in front of the point."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:#.3g}"
