"""The benchmark of the file store measures, and cleans up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefall_storage.bench import BenchConfig, measure

pytestmark = pytest.mark.anyio


async def test_the_benchmark_gives_three_rows_and_leaves_nothing(tmp_path: Path) -> None:
    config = BenchConfig(path=tmp_path, num_values=8, value_bytes=1000, num_threads=2, batch=3, repeats=2)
    rows = await measure(config)
    assert [row.what for row in rows] == ["write", "read cold", "read warm"]
    assert all(row.ratio > 0 and row.plain > 0 and row.store > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
