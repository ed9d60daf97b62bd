"""A page of a hit is damaged in the store: one counted miss with its reason, the right answer, and a page made anew."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.faults.conftest import Truth
from tests.faults.rig import Engine, LoadedModel, counted, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store, path_of

from pagefall.config import PrefetchPolicy
from pagefall_storage import page_format
from pagefall_storage.faulty import BitFlip, Fail, Fault, Faulty, ShortRead, SwapWith, Torn, Vanish
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Hit, Key

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPT = prompt_of(2, 200)
OTHER_PROMPT = prompt_of(3, 200)

Damage = Callable[[Path, Path], object]
"""Does something to the file of a page; the second is the file of another page."""


def truncate(to_bytes: int) -> Damage:
    return lambda path, other: os.truncate(path, to_bytes)


def flip(position: int) -> Damage:
    """One bit of one byte; behind the end for a negative `position`."""

    def damage(path: Path, other: Path) -> None:
        value = bytearray(path.read_bytes())
        value[position] ^= 0x10
        path.write_bytes(value)

    return damage


def append(path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def swap(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def replace_by(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path, other: Path) -> None:
        path.unlink()
        make(path)

    return damage


def link(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


def make_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "something").write_bytes(b"else")


DEFECTS: dict[str, tuple[Damage, str]] = {
    "truncated in its header": (truncate(60), "corrupt:short"),
    "truncated in its payload": (truncate(1000), "corrupt:short"),
    "truncated to its header": (truncate(HEADER_BYTES), "corrupt:short"),
    "empty": (truncate(0), "corrupt:short"),
    "too long": (append, "corrupt:long"),
    "flipped in its magic": (flip(3), "corrupt:bad magic"),
    "flipped in its version": (flip(8), "corrupt:damaged header"),
    "flipped in its key": (flip(20), "corrupt:damaged header"),
    "flipped in its namespace": (flip(50), "corrupt:damaged header"),
    "flipped in its length": (flip(80), "corrupt:damaged header"),
    "flipped in its checksum": (flip(90), "corrupt:damaged header"),
    "flipped in the header's checksum": (flip(105), "corrupt:damaged header"),
    "flipped in the header's zeros": (flip(120), "corrupt:damaged header"),
    "flipped in its first byte": (flip(HEADER_BYTES), "corrupt:checksum"),
    "flipped in its middle": (flip(4000), "corrupt:checksum"),
    "flipped in its last byte": (flip(-1), "corrupt:checksum"),
    "deleted": (replace_by(lambda path: None), "miss"),
    "a folder": (replace_by(Path.mkdir), "corrupt:not a file"),
    "a folder with something in it": (replace_by(make_full_folder), "corrupt:not a file"),
    "a link to itself": (replace_by(lambda path: path.symlink_to(path)), "corrupt:not a file"),
    "a link to another page": (link, "corrupt:not a file"),
    "a FIFO": (replace_by(os.mkfifo), "corrupt:not a file"),
}


async def assert_one_miss_and_healed(
    engine: Engine, loaded: LoadedModel, truth: Truth, *, reason: str, num_bad: int = 1, is_rewritten: bool = True
) -> None:
    """`num_bad` pages of `PROMPT` cannot be read now, for `reason`, and the next time they can."""
    num_pages = loaded.num_cacheable_pages(PROMPT)
    before, num_stored = engine.outcomes(), engine.num_stored()
    damaged = await engine.ask(PROMPT)
    assert damaged.token_ids == truth(PROMPT)
    assert damaged.by_tier == {"storage": (num_pages - num_bad) * loaded.page_size}
    assert counted(before, engine.outcomes()) == {"hit": num_pages - num_bad, reason: num_bad}
    await engine.leave_only_in("storage")
    assert engine.num_stored() - num_stored == (num_bad if is_rewritten else 0)
    before = engine.outcomes()
    healed = await engine.ask(PROMPT)
    assert (healed.token_ids, healed.by_tier) == (truth(PROMPT), {"storage": num_pages * loaded.page_size})
    assert counted(before, engine.outcomes()) == {"hit": num_pages}


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_damaged_file_is_one_miss_with_its_reason_and_is_written_anew(
    loaded: LoadedModel, truth: Truth, tmp_path: Path, defect: str
) -> None:
    damage, reason = DEFECTS[defect]
    names = loaded.names(PROMPT)
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        await engine.ask(OTHER_PROMPT)
        other = path_of(tmp_path, loaded.names(OTHER_PROMPT)[0])
        for index in (0, len(names) // 2, len(names) - 1):
            await engine.leave_only_in("storage")
            damage(path_of(tmp_path, names[index]), other)
            await assert_one_miss_and_healed(engine, loaded, truth, reason=reason)
        assert other.is_file()


async def test_files_that_were_swapped_are_each_a_miss(loaded: LoadedModel, truth: Truth, tmp_path: Path) -> None:
    names = loaded.names(PROMPT)
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        swap(path_of(tmp_path, names[1]), path_of(tmp_path, names[4]))
        await assert_one_miss_and_healed(engine, loaded, truth, reason="corrupt:other key", num_bad=2)


async def test_the_file_of_another_namespace_is_a_miss(loaded: LoadedModel, truth: Truth, tmp_path: Path) -> None:
    path = path_of(tmp_path, loaded.names(PROMPT)[2])
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        value = bytearray(path.read_bytes())
        page_format.seal(memoryview(value), key=bytes.fromhex(path.name), namespace=b"x" * 32)
        path.write_bytes(value)
        await assert_one_miss_and_healed(engine, loaded, truth, reason="corrupt:other namespace")


@contextmanager
def without_privileges(folder: Path) -> Iterator[None]:
    """Permissions count for this process meanwhile, and `folder` is its own: root would be refused nothing."""
    if os.geteuid():
        yield
        return
    nobody = 65534
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody, nobody)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """All that is above it can be entered by anyone, which is not so for pytest's folders."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


async def test_a_file_that_may_not_be_read_is_a_miss_and_is_replaced(
    loaded: LoadedModel, truth: Truth, open_folder: Path
) -> None:
    path = path_of(open_folder, loaded.names(PROMPT)[3])
    async with open_store(open_folder) as store, engine_over(loaded, store) as engine:
        assert (await engine.ask(PROMPT)).token_ids == truth(PROMPT)  # computed while files can be read
        await engine.leave_only_in("storage")
        path.chmod(0)
        with without_privileges(open_folder):
            await assert_one_miss_and_healed(engine, loaded, truth, reason="corrupt:unreadable")


LIES: dict[str, tuple[Callable[[Key], Fault], str, bool]] = {
    "half of a page": (lambda other: ShortRead(), "corrupt:short", True),
    "half of a page and zeros": (lambda other: Torn(), "corrupt:checksum", True),
    "a page with a wrong bit": (lambda other: BitFlip(bit=8 * 5000), "corrupt:checksum", True),
    "a header with a wrong bit": (lambda other: BitFlip(bit=8 * 30), "corrupt:damaged header", True),
    "another page": (SwapWith, "corrupt:other key", True),
    "nothing, having promised it": (lambda other: Vanish(), "miss", False),
    "an error": (lambda other: Fail(), "error", False),
    "its own deadline": (lambda other: Fail("timeout"), "timeout", False),
}
"""What a store gives for a page: the fault, the reason of the miss, and whether the page is written again."""


@pytest.mark.parametrize("lie", LIES)
async def test_a_store_that_gives_something_else_is_one_miss_with_its_reason(
    loaded: LoadedModel, truth: Truth, lie: str
) -> None:
    make_fault, reason, is_rewritten = LIES[lie]
    names = loaded.names(PROMPT)
    store = Faulty(MemoryBackend())
    async with engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        for index in (0, len(names) // 2, len(names) - 1):
            await engine.leave_only_in("storage")
            store.inject(make_fault(names[index - 1]), on={"get"}, keys={names[index]}, times=1)
            await assert_one_miss_and_healed(engine, loaded, truth, reason=reason, is_rewritten=is_rewritten)


async def test_these_tests_would_see_a_wrong_page(
    loaded: LoadedModel, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = loaded.names(PROMPT)
    store = Faulty(MemoryBackend())
    async with engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        monkeypatch.setattr(page_format, "verify", lambda value, *, key, namespace: Hit())
        store.inject(SwapWith(names[1]), keys={names[2]})
        assert (await engine.ask(PROMPT)).token_ids != truth(PROMPT)


@pytest.mark.parametrize("prefetch", ["auto", "best_effort", "timeout", "wait_complete"])
async def test_many_damaged_pages_at_once_change_no_token(
    loaded: LoadedModel, truth: Truth, tmp_path: Path, prefetch: PrefetchPolicy
) -> None:
    rng = random.Random(prefetch)
    prompts = [prompt_of(seed, 250 + 40 * seed) for seed in range(5)]
    names = [name for prompt in prompts for name in loaded.names(prompt)]
    async with open_store(tmp_path) as store, engine_over(loaded, store, prefetch=prefetch) as engine:
        for prompt in prompts:
            await engine.ask(prompt)
        for _ in range(3):
            await engine.leave_only_in("storage")
            for name in rng.sample(names, len(names) // 4):
                damage, _ = DEFECTS[rng.choice(list(DEFECTS))]
                with suppress(OSError):  # the file is not a file any more, or the other one is not
                    damage(path_of(tmp_path, name), path_of(tmp_path, rng.choice(names)))
            answers = await asyncio.gather(*(engine.ask(prompt) for prompt in prompts))
            assert [answer.token_ids for answer in answers] == [truth(prompt) for prompt in prompts]
        assert engine.store().breaker == "closed"
