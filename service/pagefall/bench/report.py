"""Figures, their statistics, the table that people read and the JSON that machines read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

Statistic = Literal["median", "p99"]


class Row(msgspec.Struct, frozen=True):
    """What one line of the report is about, and the statistic that sums its samples up."""

    name: str
    unit: Literal["ms", "tok/s"]
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
    """The median or the 99th percentile of at least one sample, between neighbours by linear interpolation."""
    return float(np.percentile(samples, 50 if statistic == "median" else 99))


def table(figures: Sequence[Figure], targets: Sequence[str]) -> str:
    """The figures as lines of text, then each note once, with the first row that it is about.

    With two targets there is a column with the first one's value over the second's.
    """
    rows = [["", *targets, *(["/".join(targets)] if len(targets) == 2 else []), "unit"]]
    for figure in figures:
        values = [figure.value(target) for target in targets]
        cells = ["-" if value is None else _round(value) for value in values]
        if len(values) == 2:
            cells.append("-" if values[0] is None or not values[1] else f"{values[0] / values[1]:.2f}")
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


def to_json(figures: Sequence[Figure], targets: Mapping[str, str], settings: object) -> bytes:
    """Everything that was measured, every sample included. `targets` says what each label stands for."""
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
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _round(value: float) -> str:
    """Three significant digits, and every digit in front of the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
