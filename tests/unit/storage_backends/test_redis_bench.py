"""The benchmark of the Redis store runs, and cleans up after itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.redis_servers import running
from tests.unit.storage_backends.redis_stores import names_in

from pagefall_storage.redis_bench import RedisBenchConfig, measure

pytestmark = pytest.mark.anyio


async def test_it_measures_writes_and_reads_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "redis") as server:
        server.admin.set("mine", "x")
        config = RedisBenchConfig(num_values=40, value_bytes=100_000, repeats=2)
        rows = await measure({"url": server.url}, config)
        assert [row.what for row in rows] == ["write", "read"]
        assert all(row.plain > 0 and row.store > 0 and row.store_cpu > 0 for row in rows)
        assert names_in(server) == {"mine"}
