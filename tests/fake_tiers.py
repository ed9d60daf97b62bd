"""Lower tiers under a fake model: pages that really move, through the real host memory and the real store's client."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import numpy as np
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_model import FakeModel
from tests.filled_store import NAMESPACE

from pagefall import app
from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.messages import PageIds
from pagefall.text.requests import ModelCard
from pagefall.tiers.assembly import LowerTiers, StorageClients
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.protocol import StorageBackend

TIERS: Final = TierConfig(
    enable_hierarchical_cache=True, hicache_storage_backend="memory", hicache_prefetch_threshold=8
)


class MovingCopier:
    """Copies between the model's slots and host memory, while the direction's gate is open.

    Every `fails_every`-th copy leaves garbage behind and fails. Copies count as begun before the gate.
    """

    def __init__(self, model: FakeModel, memory: HostMemory, *, fails_every: int | None = None) -> None:
        self.offloading, self.loading = threading.Event(), threading.Event()
        self.offloading.set()
        self.loading.set()
        self.num_offloads = self.num_loads = 0
        self.fails_every = fails_every
        self._model = model
        self._memory = memory
        self._numbers = itertools.count(1)

    def offload(self, device_page_ids: PageIds, host_page_ids: PageIds) -> None:
        self.num_offloads += 1
        assert self.offloading.wait(timeout=10)
        self._memory.payloads[host_page_ids] = self._model.slots[device_page_ids].view(np.uint8)
        if self._fails():
            self._memory.payloads[host_page_ids] = 0xAD
            raise OSError("injected")

    def load_back(self, host_page_ids: PageIds, device_page_ids: PageIds) -> None:
        self.num_loads += 1
        assert self.loading.wait(timeout=10)
        self._model.slots[device_page_ids] = self._memory.payloads[host_page_ids].view(np.uint32)
        if self._fails():
            self._model.slots[device_page_ids] = 0xDEAD
            raise OSError("injected")

    def _fails(self) -> bool:
        return self.fails_every is not None and next(self._numbers) % self.fails_every == 0


def fake_tiers(
    model: FakeModel,
    backend: StorageBackend | None,
    *,
    num_host_pages: int,
    config: TierConfig = TIERS,
    breaker: CircuitBreaker | None = None,
) -> tuple[LowerTiers, MovingCopier]:
    """`backend` None: no store, whatever `config` says. Another may be attached."""
    memory = HostMemory(model.slots[0].nbytes, num_host_pages, pinned=False)
    copier = MovingCopier(model, memory)
    namespace = NAMESPACE.digest()
    storage = None
    if backend is not None:
        storage = StorageClient(
            backend,
            namespace=namespace,
            memory=memory,
            deadline_seconds=config.hicache_storage_deadline,
            breaker=CircuitBreaker() if breaker is None else breaker,
            clock=time.monotonic,
        )
    return LowerTiers(config, memory, copier, storage, namespace, StorageClients(config, memory, NAMESPACE)), copier


@asynccontextmanager
async def tiered_engine(
    model: FakeModel, tiers: LowerTiers, scheduler: SchedulerConfig, *, grace_seconds: float = 10.0
) -> AsyncIterator[TokenizerActor]:
    num_pages, page_size = model.slots.shape
    with DeviceThread() as thread:
        async with app.running_engine(
            model,
            byte_tokenizer(),
            ModelCard(id="fake", context_length=num_pages * page_size, vocab_size=257, created=0),
            thread=thread,
            num_pages=num_pages,
            eos_token_ids=frozenset(),
            cache=CacheConfig(page_size=page_size),
            scheduler=scheduler,
            tiers=tiers,
            grace_seconds=grace_seconds,
        ) as engine:
            yield engine
