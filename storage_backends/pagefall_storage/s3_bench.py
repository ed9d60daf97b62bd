"""How fast the S3 store is, against a plain boto3 client with as many threads and connections.

    python -m pagefall_storage.s3_bench '{"bucket": "pages", "endpoint_url": "http://127.0.0.1:8333"}'

Takes the store's extra config; a prefix of its own in the bucket is written and removed again. Both write and read in
turns within one run, so that what else the machine does meets both. A ratio of 1 is the speed of the plain client. The
lag is how much later than asked for the event loop wakes up while the store works.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any, Final

import boto3
import msgspec
from botocore.config import Config

from pagefall_storage.client_bench import StoreRuns, parse_arguments
from pagefall_storage.loop_lag import watched_loop
from pagefall_storage.s3 import open_s3
from pagefall_storage.s3_config import S3Config, parse_s3_config

_NUM_CALLS: Final = 2


class S3BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`batch` values are one call of the store's, of which two are under way: as the server does it."""

    num_values: int = 256
    value_bytes: int = 368_768
    batch: int = 16
    repeats: int = 5


class S3Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repeats, in bytes per second, and the event loop's lag in seconds."""

    what: str
    plain: float
    store: float
    p99_lag: float


async def measure(extra_config: dict[str, object], config: S3BenchConfig) -> list[S3Row]:
    """Rows "write" and "read"."""
    prefix = f"{parse_s3_config(extra_config).object_prefix}bench-{os.getpid()}"
    its_config = {**extra_config, "prefix": prefix}
    plain = _Plain(parse_s3_config(its_config), config)
    backend = await open_s3(its_config, value_bytes=config.value_bytes)
    store = StoreRuns(
        backend,
        num_values=config.num_values,
        value_bytes=config.value_bytes,
        batch=config.batch,
        num_calls=_NUM_CALLS,
    )
    pairs: dict[str, list[tuple[float, float]]] = {"write": [], "read": []}
    lags: dict[str, list[float]] = {"write": [], "read": []}
    try:
        for _ in range(config.repeats):
            await store.clear()
            for what, run in (("write", store.write), ("read", store.read)):
                plain_seconds = await asyncio.to_thread(plain.write if what == "write" else plain.read)
                pairs[what].append((plain_seconds, await _timed(run, lags[what])))
    finally:
        await store.clear()
        await backend.aclose()
        plain.close()
    num_bytes = config.num_values * config.value_bytes
    rows = []
    for what, seconds in pairs.items():
        plain_seconds, store_seconds = (median(column) for column in zip(*seconds, strict=True))
        lag = quantiles(lags[what], n=100)[-1]
        rows.append(S3Row(what=what, plain=num_bytes / plain_seconds, store=num_bytes / store_seconds, p99_lag=lag))
    return rows


class _Plain:
    """A client as one makes it without much thought. Its objects replace each other from repeat to repeat."""

    def __init__(self, config: S3Config, bench: S3BenchConfig) -> None:
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=config.endpoint_url,
            region_name=config.region,
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            config=Config(max_pool_connections=config.num_threads, s3={"addressing_style": config.addressing_style}),
        )
        self._pool = ThreadPoolExecutor(config.num_threads)
        self._bucket = config.bucket
        self._names = [f"{config.object_prefix}plain/{i}" for i in range(bench.num_values)]
        self._value = os.urandom(bench.value_bytes)

    def write(self) -> float:
        def put(name: str) -> None:
            self._client.put_object(Bucket=self._bucket, Key=name, Body=self._value)

        return self._run(put)

    def read(self) -> float:
        def get(name: str) -> None:
            with self._client.get_object(Bucket=self._bucket, Key=name)["Body"] as body:
                assert len(body.read()) == len(self._value)

        return self._run(get)

    def close(self) -> None:
        def delete(name: str) -> None:
            self._client.delete_object(Bucket=self._bucket, Key=name)

        self._run(delete)
        self._pool.shutdown()
        self._client.close()

    def _run(self, request: Callable[[str], None]) -> float:
        started_at = time.perf_counter()
        list(self._pool.map(request, self._names))
        return time.perf_counter() - started_at


async def _timed(run: Callable[[], Awaitable[None]], lags: list[float]) -> float:
    async with watched_loop(lags):
        started_at = time.perf_counter()
        await run()
        return time.perf_counter() - started_at


def main() -> int:
    """Prints a table."""
    extra_config, config = parse_arguments("pagefall_storage.s3_bench", __doc__, S3BenchConfig)
    rows = asyncio.run(measure(extra_config, config))
    lines = [f"{'':8}{'plain MB/s':>12}{'store MB/s':>12}{'ratio':>8}{'p99 lag, ms':>13}"]
    lines += [
        f"{row.what:8}{row.plain / 1e6:12,.0f}{row.store / 1e6:12,.0f}{row.store / row.plain:8.2f}"
        f"{row.p99_lag * 1e3:13.1f}"
        for row in rows
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
