"""The metrics of an engine with every tier that has served nobody yet."""

from __future__ import annotations

import asyncio

from tests.fake_model import FakeModel
from tests.fake_tiers import fake_tiers, tiered_engine
from tests.unit.metrics.samples import metrics_of

from pagefall.actors.tokenizer import TokenizerActor
from pagefall.config import SchedulerConfig
from pagefall_storage.memory import MemoryBackend


async def fresh_metrics() -> str:
    """As `/metrics` shows them, once the store has told how much it holds."""
    model = FakeModel(num_pages=64, page_size=4)
    tiers, _ = fake_tiers(model, MemoryBackend(max_bytes=1_000_000), num_host_pages=128)
    async with tiered_engine(model, tiers, SchedulerConfig()) as engine:
        while not _has_told(engine):
            await asyncio.sleep(0)
        return metrics_of(engine.stats, engine.controller_stats).render().decode()


def _has_told(engine: TokenizerActor) -> bool:
    stats = engine.controller_stats()
    return stats is not None and stats.storage_used_bytes is not None
