"""Open file stores for tests, and the shortest way to use them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pagefall_storage.config import ByteSize
from pagefall_storage.file import FileBackend, FileConfig
from pagefall_storage.file_io import Write
from pagefall_storage.file_rescan import RescanSchedule
from pagefall_storage.protocol import GetOutcome, Key, PutItem, PutOutcome, StorageBackend


@asynccontextmanager
async def open_store(
    folder: Path,
    *,
    max_bytes: int | None = None,
    min_free_bytes: int = 0,
    write: Write = os.write,
    is_rescan_always_due: bool = False,
) -> AsyncIterator[FileBackend]:
    """`is_rescan_always_due`: it looks at the folder again before each eviction, however long that takes."""
    config = FileConfig(
        max_bytes=None if max_bytes is None else ByteSize(max_bytes), min_free_bytes=ByteSize(min_free_bytes)
    )
    always = RescanSchedule(max_bytes=max_bytes, now=0.0, seconds=0.0, time_share=1e9)
    store = FileBackend(folder, config, write=write, schedule=always if is_rescan_always_due else None)
    try:
        yield store
    finally:
        await store.aclose()


async def put(store: StorageBackend, keys: Sequence[Key], num_bytes: int = 100) -> list[PutOutcome]:
    """Values that are their own key, over and over."""
    return await store.put([PutItem(key, memoryview(value_of(key, num_bytes))) for key in keys])


async def get(store: StorageBackend, keys: Sequence[Key], num_bytes: int = 100) -> list[GetOutcome]:
    """Checks the content of the hits."""
    buffers = [bytearray(num_bytes) for _ in keys]
    outcomes = await store.get(keys, [memoryview(buffer) for buffer in buffers])
    for key, buffer, outcome in zip(keys, buffers, outcomes, strict=True):
        assert type(outcome).__name__ != "Hit" or buffer == value_of(key, num_bytes)
    return outcomes


async def stored_keys(store: StorageBackend) -> set[Key]:
    return {value.key async for value in store.scan()}


def value_of(key: Key, num_bytes: int) -> bytes:
    return (key.encode() * (num_bytes // len(key) + 1))[:num_bytes]


def path_of(folder: Path, key: Key) -> Path:
    namespace, name = key.split("/")
    return folder / namespace / name[:2] / name


def temp_files(folder: Path) -> list[Path]:
    return sorted((folder / ".temp").rglob("*"))


def num_bytes_on_disk(folder: Path) -> int:
    """Others may write and delete meanwhile: what is gone when it is looked at counts as nothing."""
    num_bytes = 0
    for parent, _, names in os.walk(folder):  # which passes over a folder that has vanished
        for name in set(names) - {"lock"}:
            with suppress(FileNotFoundError):
                num_bytes += Path(parent, name).stat().st_size
    return num_bytes
