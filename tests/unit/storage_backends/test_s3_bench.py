"""The benchmark of the S3 store runs, and cleans up after itself."""

from __future__ import annotations

import pytest
from tests.unit.storage_backends.fake_s3 import BUCKET, fake_s3

from pagefall_storage.s3_bench import S3BenchConfig, measure

pytestmark = pytest.mark.anyio


async def test_it_measures_writes_and_reads_and_leaves_nothing() -> None:
    with fake_s3() as server:
        server.objects["mine"] = b"x"
        keys = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
        config = S3BenchConfig(num_values=40, value_bytes=1000, repeats=2)
        rows = await measure({"bucket": BUCKET, "endpoint_url": server.endpoint_url, **keys}, config)
        assert [row.what for row in rows] == ["write", "read"]
        assert all(row.plain > 0 and row.store > 0 for row in rows)
        assert set(server.objects) == {"mine"}
