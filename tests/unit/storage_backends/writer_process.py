"""A process that writes values until it is killed: `writer_process.py FOLDER SEED MAX_BYTES`.

It writes slowly, in small parts, so that it always has unfinished files, and says on its output which keys are stored.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path

from pagefall_storage.config import ByteSize
from pagefall_storage.file import FileBackend, FileConfig
from pagefall_storage.protocol import Key, PutItem, Stored

NUM_BYTES = 50_000
_PART_BYTES = 10_000


def value_of(key: Key) -> bytes:
    return random.Random(key).randbytes(NUM_BYTES)


def write_slowly(fd: int, value: memoryview) -> int:
    time.sleep(0.001)
    return os.write(fd, value[:_PART_BYTES])


async def main(folder: Path, seed: int, max_bytes: int) -> None:
    config = FileConfig(max_bytes=ByteSize(max_bytes), min_free_bytes=ByteSize(0))
    store = FileBackend(folder, config, write=write_slowly)
    await asyncio.gather(write_on(store, f"{seed} one"), write_on(store, f"{seed} other"))


async def write_on(store: FileBackend, seed: str) -> None:
    rng = random.Random(seed)
    while True:
        keys = [Key(f"ns/{rng.randbytes(16).hex()}") for _ in range(4)]
        outcomes = await store.put([PutItem(key, memoryview(value_of(key))) for key in keys])
        assert outcomes == [Stored()] * 4, outcomes
        sys.stdout.write(" ".join(keys) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
