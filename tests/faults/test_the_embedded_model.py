"""The model that people try first, in float32: hits from each tier, and from a store with damaged pages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engine_rig import greedy_by_transformers
from tests.faults.rig import NUM_ANSWER_TOKENS, LoadedModel, engine_over, prompt_of
from tests.unit.storage_backends.stores import open_store, path_of

from pagefall.actors.runner import DeviceThread
from pagefall.messages import Tier
from pagefall.model.embedded import ensure_embedded

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

TIERS: tuple[Tier, ...] = ("device", "host", "storage")


async def test_every_tier_gives_the_answers_of_a_cold_run_and_a_damaged_page_changes_none(
    thread: DeviceThread, tmp_path: Path
) -> None:
    folder = ensure_embedded()
    prompts = [prompt_of(seed, num_tokens, vocab_size=40_000) for seed, num_tokens in ((1, 40), (2, 97), (3, 200))]
    truth = greedy_by_transformers(folder, prompts, NUM_ANSWER_TOKENS)
    loaded = LoadedModel(folder, thread)
    async with open_store(tmp_path) as store, engine_over(loaded, store) as engine:
        assert [(await engine.ask(prompt)).token_ids for prompt in prompts] == truth
        for tier in TIERS:
            await engine.leave_only_in(tier)
            for prompt, expected in zip(prompts, truth, strict=True):
                hit = await engine.ask(prompt)
                assert (hit.token_ids, hit.by_tier) == (expected, {tier: loaded.num_cacheable_pages(prompt) * 16})
        await engine.leave_only_in("storage")
        os.truncate(path_of(tmp_path, loaded.names(prompts[2])[5]), 1000)
        hit = await engine.ask(prompts[2])
        assert (hit.token_ids, hit.by_tier) == (truth[2], {"storage": 11 * 16})
        assert engine.outcomes()["corrupt:short"] == 1
