"""A store attached, replaced and detached under load: every token stays right, nobody is refused, no page is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fake_tiers import TIERS
from tests.integration.test_engine_with_lower_tiers import DOCUMENT, PATIENT, Rig

from pagefall.config import TierConfig
from pagefall.errors import RequestError
from pagefall_storage.faulty import Hang

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


def without_store(config: TierConfig = PATIENT) -> Rig:
    return Rig(msgspec.structs.replace(config, hicache_storage_backend=None), has_store=False)


def files(folder: Path) -> tuple[str, dict[str, Any]]:
    return "file", {"path": str(folder), "min_free_bytes": 0}


def attached(rig: Rig) -> str | None:
    stats = rig.engine.controller_stats()
    assert stats is not None
    return stats.storage_backend


async def test_a_store_that_is_attached_later_has_the_same_pages_as_one_from_the_start(tmp_path: Path) -> None:
    rig = without_store()
    async with rig.running() as engine:
        assert attached(rig) is None
        await rig.answer("cold", DOCUMENT)
        await rig.until(lambda: rig.is_at_rest)
        await engine.attach_storage(*files(tmp_path))
        assert attached(rig) == "file"
        await rig.until_written(10)
        await rig.forget_all_but_the_store()
        assert await rig.answer("storage", DOCUMENT) == {"storage": 40}
    again = without_store()
    async with again.running() as engine:
        await engine.attach_storage(*files(tmp_path))
        assert await again.answer("another server", DOCUMENT) == {"storage": 40}
        await engine.detach_storage()
        assert attached(again) is None
        await again.forget_all_but_the_store()
        assert await again.answer("computed", DOCUMENT) == {}


async def test_a_request_gets_what_it_waits_for_though_the_store_is_detached_meanwhile() -> None:
    rig = Rig()
    async with rig.running() as engine:
        await rig.answer("cold", DOCUMENT)
        await rig.until_written(10)
        await rig.forget_all_but_the_store()
        held = rig.store.inject(Hang(), on={"get"})
        waiting = asyncio.create_task(rig.answer("waiting", DOCUMENT))
        await rig.until(lambda: held.num_strikes > 0)
        await engine.detach_storage()
        rig.store.heal()
        assert await waiting == {"storage": 40}
        await rig.until(lambda: rig.is_at_rest)


async def test_a_store_that_hangs_is_replaced_by_one_that_serves(tmp_path: Path) -> None:
    rig = Rig()
    async with rig.running() as engine:
        held = rig.store.inject(Hang(), on={"put"})
        await rig.answer("cold", DOCUMENT)
        await rig.until(lambda: held.num_strikes > 0)
        await engine.attach_storage(*files(tmp_path))
        assert await rig.answer("again", DOCUMENT) == {"device": 40}
        await rig.until_written(10)
        rig.store.heal()
        await rig.forget_all_but_the_store()
        assert await rig.answer("storage", DOCUMENT) == {"storage": 40}


async def test_a_store_that_cannot_be_attached_leaves_the_other_in_use(tmp_path: Path) -> None:
    rig = Rig()
    async with rig.running() as engine:
        await rig.answer("cold", DOCUMENT)
        await rig.until_written(10)
        for backend, extra_config, param in (
            ("fil", {}, "backend"),
            ("file", {"pth": str(tmp_path)}, "extra_config"),
            ("file", {"path": "/proc/no-such-disk"}, None),
        ):
            with pytest.raises(RequestError, match=r"The store that was attached stays\.") as refused:
                await engine.attach_storage(backend, extra_config)
            assert refused.value.param == param
        await rig.forget_all_but_the_store()
        assert await rig.answer("storage", DOCUMENT) == {"storage": 40}


@pytest.mark.parametrize("prefetch", ["auto", "best_effort", "wait_complete", "timeout"])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
async def test_changes_under_load_harm_no_request(tmp_path: Path, prefetch: str, write: str) -> None:
    config = msgspec.structs.replace(
        TIERS, hicache_storage_prefetch_policy=prefetch, hicache_write_policy=write, hicache_storage_deadline=30.0
    )
    rig = Rig(config, num_host_pages=40)
    documents = [[seed, *DOCUMENT[1:]] for seed in range(4)]
    rng = random.Random(7)
    is_over = False
    from_storage = num_answers = 0

    async def load(number: int) -> None:
        nonlocal from_storage, num_answers
        for turn in range(10_000):
            if is_over:
                return
            tiers = await rig.answer(f"{number}-{turn}", rng.choice(documents))
            from_storage += tiers.get("storage", 0)
            num_answers += 1
            if turn % 8 == 0:
                await rig.engine.flush_cache({"device", "host"})

    async with rig.running() as engine:
        async with asyncio.TaskGroup() as clients:
            for number in range(4):
                clients.create_task(load(number))
            for number in range(30):
                match number % 3:
                    case 0:
                        await engine.attach_storage(*files(tmp_path / str(number % 2)))
                    case 1:
                        await engine.attach_storage("memory", {})
                    case 2:
                        await engine.detach_storage()
                enough = num_answers + 6
                while num_answers < enough:
                    await asyncio.sleep(0.001)
            is_over = True
        await rig.until(lambda: rig.is_at_rest)
        assert engine.stats().num_conservation_breaches == 0
    if (prefetch, write) == ("wait_complete", "write_through"):  # the others may well have done without a store
        assert from_storage > 0
