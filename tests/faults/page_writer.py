"""A process that writes real pages until it is killed, and says what is stored: see `test_kill.py`."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.config import ByteSize
from pagefall_storage.file import FileBackend, FileConfig
from pagefall_storage.file_io import Write
from pagefall_storage.protocol import Key


class Pages(msgspec.Struct, frozen=True, kw_only=True):
    """Of several prompts: `names[i][j]` is what page `j` of prompt `i` is called, `keys` and `payloads` alike."""

    namespace: bytes
    names: list[list[Key]]
    keys: list[list[bytes]]
    payloads: list[list[bytes]]


def write_until_killed(folder: Path, max_bytes: int, seed: int, pages: Pages, told: Connection) -> None:
    """Writes and deletes one prompt's pages after the other; several at a time, and never the same.

    `told` hears `(index, False)` before the pages of a prompt are deleted, and `(index, True)` when all are stored.
    With an odd seed it does not wait for others to kill it: it dies in the middle of a page.
    """
    asyncio.run(_write(folder, max_bytes, seed, pages, told))


def dying_write(num_writes: int) -> Write:
    """As `os.write`, but that the process ends when half of the write of this number is done."""
    count = itertools.count(1)

    def write(fd: int, data: memoryview) -> int:
        if next(count) == num_writes:
            os.write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return os.write(fd, data)

    return write


async def _write(folder: Path, max_bytes: int, seed: int, pages: Pages, told: Connection) -> None:
    config = FileConfig(max_bytes=ByteSize(max_bytes), min_free_bytes=ByteSize(0))
    backend = FileBackend(folder, config, write=dying_write(seed % 40) if seed % 2 else os.write)
    num_prompts, num_pages = len(pages.keys), len(pages.keys[0])
    memory = HostMemory(len(pages.payloads[0][0]), num_prompts * num_pages, pinned=False)
    payloads = [np.frombuffer(payload, dtype=np.uint8) for prompt in pages.payloads for payload in prompt]
    memory.payloads[:] = np.stack(payloads)
    client = StorageClient(
        backend,
        namespace=pages.namespace,
        memory=memory,
        deadline_seconds=10.0,
        breaker=CircuitBreaker(),
        clock=time.monotonic,
    )

    async def write_some(prompts: list[int], rng: random.Random) -> None:
        while True:
            index = rng.choice(prompts)
            told.send((index, False))
            await backend.delete(pages.names[index])
            host_page_ids: npt.NDArray[np.int32] = np.arange(index * num_pages, (index + 1) * num_pages, dtype=np.int32)
            if all(await client.backup(pages.keys[index], host_page_ids)):
                told.send((index, True))

    num_writers = 3
    async with asyncio.TaskGroup() as writers:
        for writer in range(num_writers):
            prompts = list(range(writer, num_prompts, num_writers))
            writers.create_task(write_some(prompts, random.Random(f"{seed} {writer}")))
