"""`kill -9` while pages are written: what is left is whole, counted, and gives no wrong token."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pytest
from tests.faults.page_writer import Pages, write_until_killed
from tests.faults.rig import LoadedModel, TokenList, engine_over, prompt_of

from pagefall_storage.memory import MemoryBackend
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Hit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PROMPTS: Final = [prompt_of(seed, 500) for seed in range(12)]
NUM_ROUNDS: Final = 50

Spawn = Callable[[Path, int, int, Pages], tuple[multiprocessing.process.BaseProcess, Connection]]


@pytest.fixture(scope="module")
def spawn() -> Iterator[Spawn]:
    """Starts a writer in a tenth of a second: it is forked from a process that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.page_writer"])

    def start(
        folder: Path, max_bytes: int, seed: int, pages: Pages
    ) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        hears, told = context.Pipe(duplex=False)
        process = context.Process(target=write_until_killed, args=(folder, max_bytes, seed, pages, told))
        process.start()
        told.close()
        return process, hears

    yield start


async def pages_of(loaded: LoadedModel, prompts: list[TokenList]) -> Pages:
    """As an engine computes them and leaves them in a store."""
    store = MemoryBackend()
    async with engine_over(loaded, store) as engine:
        for prompt in prompts:
            await engine.ask(prompt)
        await engine.settle()
        names = [loaded.names(prompt) for prompt in prompts]
        payloads = []
        for its_names in names:
            values = [bytearray(loaded.value_bytes) for _ in its_names]
            assert set(await store.get(its_names, [memoryview(value) for value in values])) == {Hit()}
            payloads.append([bytes(value[HEADER_BYTES:]) for value in values])
    keys = [[bytes.fromhex(name.rpartition("/")[2]) for name in its_names] for its_names in names]
    return Pages(namespace=loaded.namespace.digest(), names=names, keys=keys, payloads=payloads)
