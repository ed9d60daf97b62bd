"""Pages that nothing is wrong with: a hit from each tier is the cold run's answer, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.conftest import Truth
from tests.faults.rig import LoadedModel, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store

from pagefall.actors.runner import DeviceThread
from pagefall.config import PrefetchPolicy
from pagefall.messages import Tier

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPT = prompt_of(1, 300)
ALL_TIERS: tuple[Tier, ...] = ("device", "host", "storage")


@pytest.mark.parametrize("page_size", [1, 16, 64])
async def test_every_page_of_a_hit_comes_from_each_tier_and_the_answer_is_that_of_a_cold_run(
    checkpoint: Path, thread: DeviceThread, truth: Truth, tmp_path: Path, page_size: int
) -> None:
    loaded = LoadedModel(checkpoint, thread, page_size=page_size)
    num_cached = loaded.num_cacheable_pages(PROMPT) * page_size
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        cold = await engine.ask(PROMPT)
        assert (cold.token_ids, cold.by_tier) == (truth(PROMPT), {})
        for tier in ALL_TIERS:
            await engine.leave_only_in(tier)
            hit = await engine.ask(PROMPT)
            assert (hit.token_ids, hit.by_tier) == (truth(PROMPT), {tier: num_cached})
        assert engine.outcomes() == {"hit": loaded.num_cacheable_pages(PROMPT)}


async def test_one_prompt_from_all_tiers_at_once_is_answered_as_by_a_cold_run(
    loaded: LoadedModel, truth: Truth, tmp_path: Path
) -> None:
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        await engine.ask(PROMPT)
        await engine.leave_only_in("storage")
        await engine.ask(PROMPT[:200])
        await engine.leave_only_in("host")
        await engine.ask(PROMPT[:100])
        mixed = await engine.ask(PROMPT)
        assert mixed.token_ids == truth(PROMPT)
        assert mixed.by_tier == {"device": 96, "host": 96, "storage": 96}


@pytest.mark.parametrize("prefetch", ["auto", "best_effort", "timeout"])
async def test_whatever_a_policy_takes_from_the_store_the_answer_is_that_of_a_cold_run(
    loaded: LoadedModel, truth: Truth, tmp_path: Path, prefetch: PrefetchPolicy
) -> None:
    prompts = [prompt_of(seed, 300 + 50 * seed) for seed in range(6)]
    async with open_store(tmp_path) as store, engine_over(loaded, store, prefetch=prefetch) as engine:
        for prompt in prompts:
            await engine.ask(prompt)
        for _ in range(3):
            await engine.leave_only_in("storage")
            for prompt in prompts:
                assert (await engine.ask(prompt)).token_ids == truth(prompt)
        assert engine.outcomes().keys() <= {"hit"}
