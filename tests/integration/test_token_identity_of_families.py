"""In float32, every family's greedy answers are token for token those of `transformers`, however they are scheduled."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.engine_rig import Setting, TokenList, answers, engine_for, greedy_by_transformers
from tests.tiny_models import KINDS, VOCAB_SIZE, make_tiny, make_tiny_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

NUM_TOKENS = 12
ROOMY = (Setting(16, 512), Setting(1, 64), Setting(64, 16))
TIGHT = Setting(page_size=16, chunk=64, num_tokens=640)
"""Holds one and a half of the longest prompts: running together they preempt each other and evict what was cached."""


def prompts() -> list[TokenList]:
    """Random tokens; the last three share a head of 150."""
    random = np.random.default_rng(5)
    lengths = (1, 2, 15, 16, 17, 65, 129, 400)
    apart = [tuple(random.integers(2, VOCAB_SIZE, length).tolist()) for length in lengths]
    head = tuple(random.integers(2, VOCAB_SIZE, 150).tolist())
    return apart + [head + tuple(random.integers(2, VOCAB_SIZE, length).tolist()) for length in (1, 30, 90)]


class Checkpoints:
    """Each family's folder and expected answers, made when first asked for."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self.of = cache(self._make)

    def _make(self, kind: str) -> tuple[Path, list[TokenList]]:
        folder = make_tiny(kind, self._parent / kind)
        make_tiny_tokenizer(folder)
        return folder, greedy_by_transformers(folder, prompts(), NUM_TOKENS)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ROOMY, ids=str)
async def test_cold_warm_and_batched_answers_are_those_of_transformers(
    checkpoints: Checkpoints, kind: str, setting: Setting
) -> None:
    folder, expected = checkpoints.of(kind)
    assert len(set(expected)) == len(expected), "the checkpoint tells prompts apart"
    async with engine_for(folder, setting) as engine:
        cold, cold_usage = await answers(engine, prompts(), NUM_TOKENS, together=False)
        warm, warm_usage = await answers(engine, prompts(), NUM_TOKENS, together=False)
        batched, _ = await answers(engine, prompts(), NUM_TOKENS, together=True)
        await engine.flush_cache()
        strangers, _ = await answers(engine, prompts(), NUM_TOKENS, together=True)
    assert cold == warm == batched == strangers == expected
    assert [usage.cached_tokens for usage in warm_usage] == [
        (len(prompt) - 1) // setting.page_size * setting.page_size for prompt in prompts()
    ]
    assert cold_usage[0].cached_tokens == 0
    assert cold_usage[-1].cached_tokens == 150 // setting.page_size * setting.page_size


@pytest.mark.parametrize("kind", KINDS)
async def test_preempted_and_evicted_requests_answer_the_same(checkpoints: Checkpoints, kind: str) -> None:
    folder, expected = checkpoints.of(kind)
    async with engine_for(folder, TIGHT) as engine:
        for _ in range(2):
            together, _ = await answers(engine, prompts(), NUM_TOKENS, together=True)
            assert together == expected
        stats = engine.stats()
    assert stats.num_evicted_pages > 0
    assert stats.num_conservation_breaches == 0


async def test_requests_that_outgrow_the_pool_together_are_preempted_and_answer_the_same(
    checkpoints: Checkpoints,
) -> None:
    folder, _ = checkpoints.of("llama")
    random = np.random.default_rng(6)
    growing = [tuple(random.integers(2, VOCAB_SIZE, 20).tolist()) for _ in range(12)]
    expected = greedy_by_transformers(folder, growing, 260)
    setting = Setting(page_size=4, chunk=64, num_tokens=800)
    async with engine_for(folder, setting) as engine:
        together, _ = await answers(engine, growing, 260, together=True)
        stats = engine.stats()
    assert together == expected
    assert stats.num_preemptions > 0
    assert stats.device_pages.leased == stats.device_pages.pinned == 0
