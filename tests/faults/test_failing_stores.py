"""A store that refuses, is full, or has bugs: whatever it does, every answer is the cold run's, and service goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fake_backend import FakeBackend, Operation
from tests.faults.conftest import Truth
from tests.faults.rig import Clock, Engine, LoadedModel, TokenList, counted, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store

from pagefall.tiers.breaker import CircuitBreaker
from pagefall_storage.faulty import Fail, Faulty
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import Corrupt, Failed, GetOutcome, Hit, Key, PutItem, PutOutcome, Stored

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPTS = [prompt_of(seed, 150 + 10 * seed) for seed in range(8)]


async def assert_answered(engine: Engine, truth: Truth, prompts: Sequence[TokenList] = PROMPTS) -> int:
    """All at once, each as by a cold run. Returns how many tokens came from the store."""
    answers = await asyncio.gather(*(engine.ask(prompt) for prompt in prompts))
    assert [answer.token_ids for answer in answers] == [truth(prompt) for prompt in prompts]
    return sum(answer.by_tier.get("storage", 0) for answer in answers)


def num_cacheable_tokens(loaded: LoadedModel) -> int:
    return sum(loaded.num_cacheable_pages(prompt) for prompt in PROMPTS) * loaded.page_size


async def test_pages_that_were_not_written_are_misses_until_the_store_takes_them(
    loaded: LoadedModel, truth: Truth, tmp_path: Path
) -> None:
    async with open_store(tmp_path) as files:
        store = Faulty(files, seed=5)
        rule = store.inject(Fail(reason="input/output error"), on={"put"}, rate=0.05)
        async with engine_over(loaded, store) as engine:
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
            assert rule.num_strikes
            assert engine.store().num_storage_failures.keys() == {"error"}
            num_written = engine.num_stored()
            assert 0 < await assert_answered(engine, truth) < num_cacheable_tokens(loaded)
            store.heal()
            await engine.settle()
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
            assert engine.num_stored() > num_written
            assert await assert_answered(engine, truth) == num_cacheable_tokens(loaded)
            assert engine.outcomes().keys() == {"hit"}
            assert engine.store().breaker == "closed"


class Disk:
    """A file system with room for `num_pages` values; where none can be mounted, one that only says it is full."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        self.folder = folder
        self._is_full = False
        mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
        self._is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"

    def fill(self) -> None:
        """By something that is not the store's."""
        self._is_full = True
        if self._is_mounted:
            with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

    def free(self) -> None:
        self._is_full = False
        self._ballast.unlink(missing_ok=True)

    def write(self, fd: int, value: memoryview) -> int:
        if self._is_full and not self._is_mounted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, value)

    def unmount(self) -> None:
        if self._is_mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path, loaded: LoadedModel) -> Iterator[Disk]:
    disk = Disk(tmp_path, 60 * loaded.value_bytes)
    yield disk
    disk.unmount()


async def test_a_full_disk_takes_no_pages_and_takes_them_again_when_there_is_room(
    loaded: LoadedModel, truth: Truth, disk: Disk
) -> None:
    async with open_store(disk.folder, write=disk.write) as store, engine_over(loaded, store) as engine:
        disk.fill()
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        assert engine.num_stored() == 0
        assert engine.store().num_storage_failures["full"] > 0
        assert await assert_answered(engine, truth) == 0
        disk.free()
        await engine.ask(PROMPTS[0])  # what is used again is written again
        await engine.leave_only_in("storage")
        hit = await engine.ask(PROMPTS[0])
        assert hit.token_ids == truth(PROMPTS[0])
        assert hit.by_tier == {"storage": loaded.num_cacheable_pages(PROMPTS[0]) * loaded.page_size}
        assert engine.store().breaker == "closed"


async def test_a_disk_that_fills_up_under_the_store_gives_no_wrong_token(
    loaded: LoadedModel, truth: Truth, disk: Disk
) -> None:
    async with open_store(disk.folder, write=disk.write) as store, engine_over(loaded, store) as engine:
        await assert_answered(engine, truth, PROMPTS[:2])
        await engine.settle()
        disk.fill()
        for _ in range(2):
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
        assert engine.outcomes().keys() <= {"hit", "miss"}
        assert engine.store().breaker == "closed"


async def test_a_store_that_takes_nothing_costs_nobody_anything(loaded: LoadedModel, truth: Truth) -> None:
    store = Faulty(MemoryBackend())
    store.inject(Fail(), on={"put"})
    async with engine_over(loaded, store) as engine:
        for _ in range(3):
            assert await assert_answered(engine, truth) == 0
            await engine.leave_only_in("storage")
        assert engine.num_stored() == 0
        store.heal()
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        assert await assert_answered(engine, truth) == num_cacheable_tokens(loaded)


async def test_a_store_that_gives_nothing_is_left_alone_until_it_does(loaded: LoadedModel, truth: Truth) -> None:
    store, clock = Faulty(MemoryBackend()), Clock()
    async with engine_over(loaded, store, breaker=CircuitBreaker(random=lambda: 1.0), clock=clock) as engine:
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        store.inject(Fail())
        assert await assert_answered(engine, truth) == 0
        await engine.leave_only_in("storage")
        assert engine.store().breaker == "open"
        calls = store.num_calls.copy()
        assert await assert_answered(engine, truth) == 0
        await engine.leave_only_in("storage")
        assert store.num_calls == calls
        store.heal()
        clock.now += 1.0
        assert await assert_answered(engine, truth, PROMPTS[:1]) == 0  # the probe goes ahead of whoever comes next
        await engine.until_breaker("closed")
        await engine.leave_only_in("storage")
        assert await assert_answered(engine, truth) == num_cacheable_tokens(loaded)


BUGS: dict[str, Exception] = {
    "a bug": ZeroDivisionError("division by zero"),
    "an error of the system": OSError(errno.EIO, "input/output error"),
    "a timeout of its own": TimeoutError(),
}
OPERATIONS: tuple[Operation, ...] = ("contains", "get", "put", "delete")


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_exception_of_the_store_is_a_miss(
    loaded: LoadedModel, truth: Truth, operation: Operation, bug: str
) -> None:
    store = FakeBackend()
    async with engine_over(loaded, store) as engine:
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        if operation == "delete":  # is asked only where something is damaged
            name = loaded.names(PROMPTS[0])[1]
            store.values[name] = store.values[name][:-1]
        store.errors[operation] = BUGS[bug]
        for _ in range(2):
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
        assert engine.outcomes().keys() <= {"hit", "error", "breaker_open", "corrupt:short"}


class Nonsense(FakeBackend):
    """Answers what no backend may answer: `lies[operation]` in place of the true value, or of each outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.lies: dict[Operation, Any] = {}

    async def contains(self, keys: Sequence[Key]) -> int:
        num_present = await super().contains(keys)
        return self.lies["contains"](num_present) if "contains" in self.lies else num_present

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        outcomes = await super().get(keys, into)
        return self.lies["get"](outcomes) if "get" in self.lies else outcomes

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        outcomes = await super().put(items)
        return self.lies["put"](outcomes) if "put" in self.lies else outcomes


NONSENSE: dict[str, tuple[Operation, Any]] = {
    "more pages than it was asked about": ("contains", lambda num: num + 1000),
    "fewer than none": ("contains", lambda num: -1),
    "a fraction": ("contains", float),
    "a list of booleans": ("contains", lambda num: [True] * num),
    "an outcome too many": ("get", lambda outcomes: [*outcomes, Hit()]),
    "no outcome of a read": ("get", lambda outcomes: None),
    "None for each page": ("get", lambda outcomes: [None] * len(outcomes)),
    "True for each page": ("get", lambda outcomes: [True] * len(outcomes)),
    "the outcomes of a write": ("get", lambda outcomes: [Stored()] * len(outcomes)),
    "hits for pages that it did not read": ("get", lambda outcomes: [Hit()] * len(outcomes)),
    "a reason that is none": ("get", lambda outcomes: [Corrupt(None)] * len(outcomes)),  # type: ignore[arg-type]
    "a failure of no kind": ("get", lambda outcomes: [Failed("odd", "")] * len(outcomes)),  # type: ignore[arg-type]
    "an outcome too few": ("put", lambda outcomes: outcomes[:-1]),
    "None for each write": ("put", lambda outcomes: [None] * len(outcomes)),
}


@pytest.mark.parametrize("lie", NONSENSE)
async def test_a_store_that_answers_nonsense_gives_no_wrong_token(loaded: LoadedModel, truth: Truth, lie: str) -> None:
    store = Nonsense()
    operation, change = NONSENSE[lie]
    if operation == "put":
        store.lies[operation] = change
    async with engine_over(loaded, store) as engine:
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        store.lies[operation] = change
        for _ in range(2):
            await assert_answered(engine, truth)
            await engine.leave_only_in("storage")
    assert store.is_closed


async def test_a_store_that_is_gone_and_comes_back_is_used_again(loaded: LoadedModel, truth: Truth) -> None:
    store, clock = FakeBackend(), Clock()
    async with engine_over(loaded, store, breaker=CircuitBreaker(random=lambda: 1.0), clock=clock) as engine:
        await assert_answered(engine, truth)
        await engine.leave_only_in("storage")
        store.errors = {operation: ConnectionRefusedError() for operation in OPERATIONS}
        assert await assert_answered(engine, truth) == 0
        await engine.until_breaker("open")
        before = engine.outcomes()
        store.errors = {}
        clock.now += 1.0
        await engine.leave_only_in("storage")
        await engine.ask(PROMPTS[0])
        await engine.until_breaker("closed")
        await engine.leave_only_in("storage")
        assert await assert_answered(engine, truth) == num_cacheable_tokens(loaded)
        assert counted(before, engine.outcomes()).keys() == {"hit"}
