"""How fast the Redis store is, against a plain redis-py client.

    python -m pagefall_storage.redis_bench '{"url": "redis://127.0.0.1:6379"}'

Takes the store's extra config, with the URL of one server; names of its own are written there and removed again. Both
write and read in turns within one run, so that what else the machine does meets both. A ratio of 1 is the speed of the
plain client, which copies no value to where it is wanted. The lag is how much later than asked for the event loop wakes
up while the store works.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median, quantiles

import msgspec
from redis.asyncio import Redis

from pagefall_storage.client_bench import StoreRuns, bench_keys, parse_arguments, take_turns
from pagefall_storage.loop_lag import watched_loop
from pagefall_storage.redis import open_redis


class RedisBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`num_calls` calls of the store are under way, of `batch` values each: as the server does it. The plain client has
    `num_connections`.
    """

    num_values: int = 256
    value_bytes: int = 368_768
    batch: int = 16
    num_calls: int = 4
    num_connections: int = 4
    repeats: int = 5


class RedisRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repeats: bytes per second, and seconds of this process's CPU time per value. Lag in seconds."""

    what: str
    plain: float
    store: float
    plain_cpu: float
    store_cpu: float
    p99_lag: float


class _Timing(msgspec.Struct, frozen=True):
    seconds: float
    cpu_seconds: float


async def measure(extra_config: dict[str, object], config: RedisBenchConfig) -> list[RedisRow]:
    """Rows "write" and "read"."""
    prefix = f"pagefall-bench-{os.getpid()}:"
    plain = _Plain(str(extra_config["url"]), prefix, config)
    backend = await open_redis({**extra_config, "key_prefix": prefix}, value_bytes=None)
    store = StoreRuns(
        backend,
        num_values=config.num_values,
        value_bytes=config.value_bytes,
        batch=config.batch,
        num_calls=config.num_calls,
    )
    rows = []
    try:
        for what, run_plain, run_store in (
            ("write", plain.write, store.write),
            ("read", plain.read, store.read),
        ):
            plain_timings, store_timings, lags = [], [], list[float]()
            for _ in range(config.repeats):
                plain_timings.append(await _timed(run_plain, []))
                store_timings.append(await _timed(run_store, lags))
            num_bytes = config.num_values * config.value_bytes
            rows.append(
                RedisRow(
                    what=what,
                    plain=num_bytes / median(timing.seconds for timing in plain_timings),
                    store=num_bytes / median(timing.seconds for timing in store_timings),
                    plain_cpu=median(timing.cpu_seconds for timing in plain_timings) / config.num_values,
                    store_cpu=median(timing.cpu_seconds for timing in store_timings) / config.num_values,
                    p99_lag=quantiles(lags, n=100)[-1],
                )
            )
    finally:
        await store.clear()
        await backend.aclose()
        await plain.aclose()
    return rows


class _Plain:
    """One command at a time on each connection. Its names are the store's: both write and read the same values."""

    def __init__(self, url: str, prefix: str, config: RedisBenchConfig) -> None:
        self._client = Redis.from_url(url, max_connections=config.num_connections, socket_timeout=None)
        self._names = [f"{prefix}{key}" for key in bench_keys(config.num_values)]
        self._value = os.urandom(config.value_bytes)
        self._num_connections = config.num_connections

    async def write(self) -> None:
        async def put(name: str) -> None:
            await self._client.set(name, self._value)

        await take_turns(put, self._names, self._num_connections)

    async def read(self) -> None:
        async def get(name: str) -> None:
            value = await self._client.get(name)
            assert value is not None
            assert len(value) == len(self._value)

        await take_turns(get, self._names, self._num_connections)

    async def aclose(self) -> None:
        await self._client.aclose()


async def _timed(run: Callable[[], Awaitable[None]], lags: list[float]) -> _Timing:
    async with watched_loop(lags):
        started_at, cpu_before = time.perf_counter(), time.process_time()
        await run()
        return _Timing(time.perf_counter() - started_at, time.process_time() - cpu_before)


def main() -> int:
    """Prints a table."""
    extra_config, config = parse_arguments("pagefall_storage.redis_bench", __doc__, RedisBenchConfig)
    rows = asyncio.run(measure(extra_config, config))
    lines = [f"{'':8}{'plain MB/s':>12}{'store MB/s':>12}{'ratio':>8}{'CPU, us a value':>18}{'p99 lag, ms':>13}"]
    lines += [
        f"{row.what:8}{row.plain / 1e6:12,.0f}{row.store / 1e6:12,.0f}{row.store / row.plain:8.2f}"
        f"{row.plain_cpu * 1e6:9.0f} {row.store_cpu * 1e6:8.0f}{row.p99_lag * 1e3:13.1f}"
        for row in rows
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
