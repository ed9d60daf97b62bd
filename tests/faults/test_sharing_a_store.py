"""One folder, several servers: what computes the same bytes shares all of it, anything else shares nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from tests.engine_rig import greedy_by_transformers
from tests.faults.conftest import Truth
from tests.faults.rig import NUM_ANSWER_TOKENS, LoadedModel, TokenList, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store

from pagefall.actors.runner import DeviceThread

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

PROMPT = prompt_of(4, 300)


async def write(loaded: LoadedModel, folder: Path, truth: TokenList) -> None:
    """A server answers, leaves its pages in the folder, and ends."""
    async with open_store(folder) as store, engine_over(loaded, store) as engine:
        assert (await engine.ask(PROMPT)).token_ids == truth


async def assert_nothing_is_reused(loaded: LoadedModel, folder: Path, truth: TokenList) -> None:
    async with open_store(folder) as store, engine_over(loaded, store) as engine:
        cold = await engine.ask(PROMPT)
        assert (cold.token_ids, cold.by_tier) == (truth, {})
        assert engine.stats().num_lookups == 1
        assert engine.outcomes() == {}
        await engine.leave_only_in("storage")
        hit = await engine.ask(PROMPT)
        assert (hit.token_ids, sum(hit.by_tier.values())) == (
            truth,
            (len(PROMPT) - 1) // loaded.page_size * loaded.page_size,
        )


async def answer_without_store(loaded: LoadedModel) -> TokenList:
    async with engine_over(loaded, None) as engine:
        return (await engine.ask(PROMPT)).token_ids


async def test_a_restarted_server_finds_what_it_wrote(loaded: LoadedModel, truth: Truth, tmp_path: Path) -> None:
    await write(loaded, tmp_path, truth(PROMPT))
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        hit = await engine.ask(PROMPT)
        assert (hit.token_ids, hit.by_tier) == (truth(PROMPT), {"storage": 288})


async def test_weights_that_differ_in_one_number_share_nothing_under_the_same_name(
    loaded: LoadedModel, other_checkpoint: Path, thread: DeviceThread, truth: Truth, tmp_path: Path
) -> None:
    changed = LoadedModel(other_checkpoint, thread)
    assert changed.model.info.spec.served_name == loaded.model.info.spec.served_name
    await write(loaded, tmp_path / "store", truth(PROMPT))
    (its_truth,) = greedy_by_transformers(other_checkpoint, [PROMPT], NUM_ANSWER_TOKENS)
    await assert_nothing_is_reused(changed, tmp_path / "store", its_truth)


async def test_another_dtype_shares_nothing(
    loaded: LoadedModel, checkpoint: Path, thread: DeviceThread, truth: Truth, tmp_path: Path
) -> None:
    await write(loaded, tmp_path, truth(PROMPT))
    halved = LoadedModel(checkpoint, thread, dtype="bfloat16")
    assert halved.model.info.spec.dtype == torch.bfloat16
    await assert_nothing_is_reused(halved, tmp_path, await answer_without_store(halved))


@pytest.mark.parametrize("page_size", [1, 8, 32])
async def test_another_page_size_shares_nothing(
    loaded: LoadedModel, checkpoint: Path, thread: DeviceThread, truth: Truth, tmp_path: Path, page_size: int
) -> None:
    await write(loaded, tmp_path, truth(PROMPT))
    await assert_nothing_is_reused(LoadedModel(checkpoint, thread, page_size=page_size), tmp_path, truth(PROMPT))


async def test_another_salt_shares_nothing_in_any_tier(loaded: LoadedModel, truth: Truth, tmp_path: Path) -> None:
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        for number, salt in enumerate(("", "tenant", "another tenant")):
            cold = await engine.ask(PROMPT, cache_salt=salt)
            assert (cold.token_ids, cold.by_tier) == (truth(PROMPT), {})
            await engine.leave_only_in("storage")
            assert engine.outcomes().get("hit", 0) == 18 * number
            hit = await engine.ask(PROMPT, cache_salt=salt)
            assert (hit.token_ids, hit.by_tier) == (truth(PROMPT), {"storage": 288})


async def test_two_servers_share_one_folder_at_the_same_time(
    loaded: LoadedModel, checkpoint: Path, thread: DeviceThread, truth: Truth, tmp_path: Path
) -> None:
    twin = LoadedModel(checkpoint, thread)
    prompts = [prompt_of(seed, 200) for seed in range(6)]
    async with (
        open_store(tmp_path) as store,
        open_store(tmp_path) as its_store,
        engine_over(loaded, store) as engine,
        engine_over(twin, its_store) as other,
    ):
        assert (await engine.ask(PROMPT)).by_tier == {}
        await engine.settle()
        hit = await other.ask(PROMPT)
        assert (hit.token_ids, hit.by_tier) == (truth(PROMPT), {"storage": 288})
        for _ in range(2):
            both = [*map(engine.ask, prompts), *map(other.ask, prompts)]
            answers = await asyncio.gather(*both)
            assert [answer.token_ids for answer in answers] == 2 * [truth(prompt) for prompt in prompts]
            await engine.leave_only_in("storage")
            await other.leave_only_in("storage")
        assert engine.outcomes().keys() <= {"hit"}
        assert other.outcomes().keys() == {"hit"}
