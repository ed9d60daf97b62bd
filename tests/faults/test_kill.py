"""`kill -9` while pages are written: what is left is whole, counted, and gives no wrong token."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest
from tests.faults.conftest import Truth
from tests.faults.page_writer import Pages, write_until_killed
from tests.faults.rig import LoadedModel, engine_over, prompt_of
from tests.unit.storage_backends.stores import num_bytes_on_disk, open_store, temp_files

from pagefall_storage import page_format
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Hit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PROMPTS: Final = [prompt_of(seed, 500) for seed in range(12)]
NUM_KILLS: Final = 25  # with each quota: fifty


async def pages_of(loaded: LoadedModel) -> Pages:
    """Of all prompts, as an engine computes them and leaves them in a store."""
    store = MemoryBackend()
    async with engine_over(loaded, store) as engine:
        for prompt in PROMPTS:
            await engine.ask(prompt)
        await engine.settle()
        names = [loaded.names(prompt) for prompt in PROMPTS]
        payloads = []
        for its_names in names:
            values = [bytearray(loaded.value_bytes) for _ in its_names]
            outcomes = await store.get(its_names, [memoryview(value) for value in values])
            assert outcomes == [Hit()] * len(its_names)
            payloads.append([bytes(value[HEADER_BYTES:]) for value in values])
    keys = [[bytes.fromhex(name.rpartition("/")[2]) for name in its_names] for its_names in names]
    return Pages(namespace=loaded.namespace.digest(), names=names, keys=keys, payloads=payloads)


class Writers:
    """Processes that write into one folder, one after the other. `is_stored`: what they told of each prompt."""

    def __init__(self, folder: Path, pages: Pages, *, max_bytes: int) -> None:
        self.is_stored: dict[int, bool] = {}
        self._folder = folder
        self._pages = pages
        self._max_bytes = max_bytes
        # Forked from a process that has imported everything: a writer starts at once.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.faults.page_writer"])

    def write_and_kill(self, seed: int) -> None:
        hears, told = self._context.Pipe(duplex=False)
        arguments = (self._folder, self._max_bytes, seed, self._pages, told)
        process = self._context.Process(target=write_until_killed, args=arguments)
        process.start()
        told.close()
        assert hears.poll(timeout=20)
        if seed % 2:
            process.join(timeout=20)
        else:
            time.sleep(random.Random(seed).uniform(0.0, 0.1))
            process.kill()
            process.join()
        assert process.exitcode == -signal.SIGKILL
        while hears.poll():
            try:
                index, is_stored = hears.recv()
            except EOFError:
                break
            self.is_stored[index] = is_stored
        hears.close()


async def assert_whole(folder: Path, writers: Writers, pages: Pages, *, max_bytes: int, is_full: bool) -> None:
    payload_of = {
        name: (key, payload)
        for names, keys, payloads in zip(pages.names, pages.keys, pages.payloads, strict=True)
        for name, key, payload in zip(names, keys, payloads, strict=True)
    }
    async with open_store(folder, max_bytes=max_bytes) as store:
        assert [path.name for path in temp_files(folder) if path.is_file()] == ["lock"], "that of this process"
        values = [value async for value in store.scan()]
        usage = await store.usage()
        assert usage.num_values == len(values)
        assert usage.num_bytes == num_bytes_on_disk(folder) <= max_bytes
        for value in values:
            buffer = memoryview(bytearray(value.num_bytes))
            assert await store.get([value.key], [buffer]) == [Hit()]
            key, payload = payload_of[value.key]
            assert page_format.verify(buffer, key=key, namespace=pages.namespace) == Hit()
            assert buffer[HEADER_BYTES:] == payload
        if not is_full:  # else what was stored may have been evicted
            stored = [index for index, is_stored in writers.is_stored.items() if is_stored]
            assert {name for index in stored for name in pages.names[index]} <= {value.key for value in values}


@pytest.mark.parametrize("is_full", [False, True], ids=["with room for all", "with room for half"])
async def test_after_each_of_many_kills_the_store_is_whole_and_at_last_it_gives_no_wrong_token(
    loaded: LoadedModel, truth: Truth, tmp_path: Path, is_full: bool
) -> None:
    pages = await pages_of(loaded)
    num_all_bytes = sum(map(len, pages.names)) * loaded.value_bytes
    max_bytes = num_all_bytes // 2 if is_full else 2 * num_all_bytes
    writers = Writers(tmp_path, pages, max_bytes=max_bytes)
    num_unfinished = 0
    for seed in range(NUM_KILLS):
        writers.write_and_kill(seed)
        num_unfinished += sum(path.name.isdigit() for path in temp_files(tmp_path))
        await assert_whole(tmp_path, writers, pages, max_bytes=max_bytes, is_full=is_full)
    assert any(writers.is_stored.values())
    assert num_unfinished >= NUM_KILLS // 2, "it was not killed while it wrote"
    async with open_store(tmp_path, max_bytes=max_bytes) as store, engine_over(loaded, store) as engine:
        answers = [await engine.ask(prompt) for prompt in PROMPTS]
        assert [answer.token_ids for answer in answers] == [truth(prompt) for prompt in PROMPTS]
        assert sum(answer.by_tier.get("storage", 0) for answer in answers) > 0
        assert engine.outcomes().keys() <= {"hit", "miss"}
