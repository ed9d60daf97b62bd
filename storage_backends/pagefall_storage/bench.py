"""How fast the file store is, against plain preadv and pwrite of as many files on as many threads.

    python -m pagefall_storage.bench --path DIR

Both read and write in turns within one run, so that what else the machine does meets both. A ratio of 1 is the speed of
the plain calls; cold means that the files were dropped from the system's page cache before, warm that they are in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import numpy as np

from pagefall_storage.file import FileBackend, FileConfig
from pagefall_storage.protocol import Hit, Key, PutItem, Stored

_NAMESPACE: Final = "bench"


class BenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    num_values: int
    value_bytes: int
    num_threads: int
    batch: int
    repeats: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repeats, in bytes per second."""

    what: str
    plain: float
    store: float

    @property
    def ratio(self) -> float:
        return self.store / self.plain


def main() -> int:
    """Measures in a folder of its own below `--path`, which it removes again, and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m pagefall_storage.bench", description=__doc__)
    parser.add_argument("--path", type=Path, required=True, help="a folder on the file system to measure")
    parser.add_argument("--num-values", type=int, default=256)
    parser.add_argument("--value-bytes", type=int, default=368_768)
    parser.add_argument("--num-threads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="values per call")
    parser.add_argument("--repeats", type=int, default=8)
    config = msgspec.convert(vars(parser.parse_args()), BenchConfig)
    rows = asyncio.run(measure(config))
    lines = [f"{'':12}{'plain MB/s':>12}{'store MB/s':>12}{'ratio':>8}"]
    lines += [f"{row.what:12}{row.plain / 1e6:12,.0f}{row.store / 1e6:12,.0f}{row.ratio:8.2f}" for row in rows]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


async def measure(config: BenchConfig) -> list[Row]:
    """Rows "write", "read cold" and "read warm"."""
    folder = config.path / f"pagefall-bench-{os.getpid()}"
    plain = _Plain(folder / "plain", config)
    store = await _Store.open(folder / "store", config)
    try:
        timings: dict[str, list[tuple[float, float]]] = {"write": [], "read cold": [], "read warm": []}
        for repeat in range(config.repeats):
            is_plain_first = repeat % 2 == 0  # the system may still be busy with what the one before it wrote
            _drop_from_page_cache(folder)
            await store.clear()
            plain.clear()
            timings["write"].append(await _time_both(plain.write, store.write, is_plain_first=is_plain_first))
            _drop_from_page_cache(folder)
            for what in ("read cold", "read warm"):
                timings[what].append(await _time_both(plain.read, store.read, is_plain_first=is_plain_first))
    finally:
        await store.aclose()
        shutil.rmtree(folder)
    num_bytes = config.num_values * config.value_bytes
    rows = []
    for what, pairs in timings.items():
        plain_seconds, store_seconds = (median(seconds) for seconds in zip(*pairs, strict=True))
        rows.append(Row(what=what, plain=num_bytes / plain_seconds, store=num_bytes / store_seconds))
    return rows


async def _time_both(
    plain: Callable[[], float], store: Callable[[], Awaitable[float]], *, is_plain_first: bool
) -> tuple[float, float]:
    if is_plain_first:
        plain_seconds = plain()
        return plain_seconds, await store()
    store_seconds = await store()
    return plain(), store_seconds


class _Plain:
    """Files in one folder: open, one call to the system, close."""

    def __init__(self, folder: Path, config: BenchConfig) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._paths = [f"{folder}/{i}" for i in range(config.num_values)]
        self._buffers = _buffers(config)
        self._num_threads = config.num_threads
        self._batch = config.batch

    def write(self) -> float:
        return self._run(_write_plainly)

    def read(self) -> float:
        return self._run(_read_plainly)

    def clear(self) -> None:
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    def _run(self, function: Callable[[str, memoryview], None]) -> float:
        def job(start: int, first: int) -> None:
            for i in range(start + first, min(start + self._batch, len(self._paths)), self._num_threads):
                function(self._paths[i], self._buffers[i])

        with ThreadPoolExecutor(self._num_threads) as pool:
            list(pool.map(time.sleep, [0.001] * self._num_threads))  # the threads are there before the clock starts
            started_at = time.perf_counter()
            for start in range(0, len(self._paths), self._batch):
                list(pool.map(job, [start] * self._num_threads, range(self._num_threads)))
            return time.perf_counter() - started_at


class _Store:
    def __init__(self, backend: FileBackend, config: BenchConfig) -> None:
        self._backend = backend
        names = [f"{i * 2654435761 % 2**32:08x}{i:056x}" for i in range(config.num_values)]
        self._keys = [Key(f"{_NAMESPACE}/{name}") for name in names]
        self._buffers = _buffers(config)
        self._batch = config.batch

    @classmethod
    async def open(cls, folder: Path, config: BenchConfig) -> _Store:
        file_config = FileConfig(num_threads=config.num_threads)
        return cls(await asyncio.to_thread(FileBackend, folder, file_config), config)

    async def write(self) -> float:
        started_at = time.perf_counter()
        for start in range(0, len(self._keys), self._batch):
            batch = slice(start, start + self._batch)
            pairs = zip(self._keys[batch], self._buffers[batch], strict=True)
            outcomes = await self._backend.put([PutItem(key, value) for key, value in pairs])
            assert all(isinstance(outcome, Stored) for outcome in outcomes), outcomes
        return time.perf_counter() - started_at

    async def read(self) -> float:
        started_at = time.perf_counter()
        for start in range(0, len(self._keys), self._batch):
            batch = slice(start, start + self._batch)
            outcomes = await self._backend.get(self._keys[batch], self._buffers[batch])
            assert all(isinstance(outcome, Hit) for outcome in outcomes), outcomes
        return time.perf_counter() - started_at

    async def clear(self) -> None:
        await self._backend.delete(self._keys)

    async def aclose(self) -> None:
        await self._backend.aclose()


def _buffers(config: BenchConfig) -> list[memoryview]:
    """One pool, cut up: touched once, so that no read pays for its pages."""
    pool = np.full((config.num_values, config.value_bytes), 7, dtype=np.uint8)
    return [row.data for row in pool]


def _write_plainly(path: str, value: memoryview) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.pwrite(fd, value, 0)
    os.close(fd)


def _read_plainly(path: str, into: memoryview) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.preadv(fd, [into], 0)
    os.close(fd)


def _drop_from_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)  # a page that is not written yet cannot be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
