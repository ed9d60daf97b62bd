"""`pagefall bench transfers`: how fast pages go to a store and come back, and how late the event loop is meanwhile.

They are moved by what the server has for it, checksums and all, with no server or model around it. Lag is how much
later than asked for the loop wakes up: for so long a token of somebody else's answer may have to wait for its turn.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from pagefall.bench.report import Statistic, align, summarise
from pagefall.bench.server_process import run_until_ended
from pagefall.errors import ConfigError, PagefallError
from pagefall.messages import FetchOutcome
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.manifest import NAMESPACE_DIGITS
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.loop_lag import watched_loop
from pagefall_storage.protocol import Key, StorageBackend
from pagefall_storage.registry import open_backend

_REST_SECONDS: Final = 0.5
_DEADLINE_SECONDS: Final = 30.0
_DELETED_AT_ONCE: Final = 256
_DIGEST_BYTES: Final = 32
_STATISTICS: Final[tuple[Statistic, ...]] = ("median", "p99", "max")


class TransfersBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`backend` and `extra_config`, a JSON object as text, are the store's; without the latter a file store is a folder
    that goes when the run ends. A page is as large as one of the embedded model's. `num_requests` read at a time.
    """

    backend: str = "file"
    extra_config: str | None = None
    num_pages: int = 256
    page_bytes: int = 368_640
    num_requests: int = 4
    repeats: int = 3


class TransferRow(msgspec.Struct, frozen=True, kw_only=True):
    """`bytes_per_second`: the median of the repeats, None where nothing moved. `lags_seconds`: of all of them."""

    what: str
    bytes_per_second: float | None
    lags_seconds: tuple[float, ...]


def bench_transfers(config: TransfersBenchConfig) -> int:
    """Measure and print the table; returns 0. Raises `PagefallError`."""
    with tempfile.TemporaryDirectory(prefix="pagefall-store-") as folder:
        rows = run_until_ended(lambda config: measure_transfers(config, Path(folder)), config)
    title = f"{config.backend}: {config.num_pages} pages of {config.page_bytes:,} bytes, {config.repeats} repeats"
    sys.stdout.write("\n".join([title, "", *align(cells(rows))]) + "\n")
    return 0


def cells(rows: Sequence[TransferRow]) -> list[list[str]]:
    """The table, with its head."""
    table = [["", "MB/s", "loop late, median ms", "p99 ms", "max ms"]]
    for row in rows:
        moved = "-" if row.bytes_per_second is None else f"{row.bytes_per_second / 1e6:,.0f}"
        lags = [f"{1000 * summarise(row.lags_seconds, statistic):.2f}" for statistic in _STATISTICS]
        table.append([row.what, moved, *lags])
    return table


async def measure_transfers(config: TransfersBenchConfig, folder: Path) -> list[TransferRow]:
    """Rows "at rest", "backup" and "restore". What was written is deleted again. A file store without settings is in
    `folder`. Raises `PagefallError` where the store does not take the pages or give them back.
    """
    lags: dict[str, list[float]] = {"at rest": [], "backup": [], "restore": []}
    rates: dict[str, list[float]] = {"backup": [], "restore": []}
    memory = HostMemory(config.page_bytes, config.num_pages, pinned=False)
    memory.payloads[:] = np.random.default_rng().integers(0, 256, memory.payloads.shape, dtype=np.uint8)
    num_bytes = config.num_pages * memory.value_bytes
    async with _open(config, folder, memory) as store:
        await _timed(asyncio.sleep(_REST_SECONDS), lags["at rest"])
        for _ in range(config.repeats):
            keys = [os.urandom(_DIGEST_BYTES) for _ in range(config.num_pages)]
            try:
                for what, move in (("backup", store.back_up), ("restore", store.restore)):
                    rates[what].append(num_bytes / await _timed(move(keys), lags[what]))
            finally:
                await store.delete(keys)
    return [
        TransferRow(
            what=what,
            bytes_per_second=median(rates[what]) if what in rates else None,
            lags_seconds=tuple(its_lags),
        )
        for what, its_lags in lags.items()
    ]


class _Store:
    """What the server has before a backend, for as many keys as `memory` has pages."""

    def __init__(self, backend: StorageBackend, memory: HostMemory, *, num_requests: int) -> None:
        self._backend = backend
        self._namespace = os.urandom(_DIGEST_BYTES)
        self._page_ids = np.arange(memory.num_pages, dtype=np.int32)
        self._parts = np.array_split(self._page_ids, min(num_requests, memory.num_pages))
        self._client = StorageClient(
            backend,
            namespace=self._namespace,
            memory=memory,
            deadline_seconds=_DEADLINE_SECONDS,
            breaker=CircuitBreaker(),
            clock=time.monotonic,
        )

    async def back_up(self, keys: Sequence[bytes]) -> None:
        stored = await self._client.backup(keys, self._page_ids)
        if not all(stored):
            raise PagefallError(f"the store took {sum(stored)} of {len(stored)} pages; failures: {self._failures()}")

    async def restore(self, keys: Sequence[bytes]) -> None:
        outcomes = Counter[FetchOutcome]()

        async def report(indices: tuple[int, ...], its_outcomes: tuple[FetchOutcome, ...]) -> None:
            outcomes.update(its_outcomes)

        stopped = asyncio.Event()  # never
        async with asyncio.TaskGroup() as requests:
            for part in self._parts:
                its_keys = [keys[index] for index in part.tolist()]
                requests.create_task(self._client.fetch(its_keys, part, report, stopped))
        if outcomes.keys() != {"hit"}:
            raise PagefallError(f"the store gave {dict(outcomes)} of its pages; failures: {self._failures()}")

    async def delete(self, keys: Sequence[bytes]) -> None:
        names = [Key(f"{self._namespace.hex()[:NAMESPACE_DIGITS]}/{key.hex()}") for key in keys]
        for first in range(0, len(names), _DELETED_AT_ONCE):
            await self._backend.delete(names[first : first + _DELETED_AT_ONCE])

    async def aclose(self) -> None:
        """Closes the backend too."""
        await self._client.aclose()

    def _failures(self) -> dict[str, int]:
        return self._client.stats().num_storage_failures


async def _timed(work: Coroutine[Any, Any, object], lags: list[float]) -> float:
    """Seconds that the work took."""
    async with watched_loop(lags):
        started = time.perf_counter()
        await work
        return time.perf_counter() - started


@asynccontextmanager
async def _open(config: TransfersBenchConfig, folder: Path, memory: HostMemory) -> AsyncIterator[_Store]:
    settings: dict[str, object] = {"path": str(folder / "pages")} if config.backend == "file" else {}
    if config.extra_config is not None:
        settings = msgspec.json.decode(config.extra_config, type=dict[str, object])
    try:
        backend = await open_backend(config.backend, settings, value_bytes=memory.value_bytes)
    except (StorageConfigError, StorageError) as error:
        raise ConfigError(str(error)) from error
    store = _Store(backend, memory, num_requests=config.num_requests)
    try:
        yield store
    except StorageError as error:
        raise PagefallError(f"{backend.description}: {error}") from error
    finally:
        await store.aclose()
