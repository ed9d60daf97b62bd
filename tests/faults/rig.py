"""A real model in float32 over three real tiers, of which a test damages the lowest."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import msgspec
import numpy as np
import pytest
from tests.byte_tokenizer import byte_tokenizer

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import running_engine
from pagefall.cache.keys import page_keys, root_key
from pagefall.cache.namespace import Namespace
from pagefall.config import CacheConfig, Dtype, ModelConfig, PrefetchPolicy, SchedulerConfig, TierConfig
from pagefall.messages import BreakerState, ControllerStats, RequestId, SamplingParams, SchedulerStats, Tier
from pagefall.model.engine import PagedModel, load
from pagefall.model.spec import inspect
from pagefall.namespaces import namespace_of
from pagefall.text.requests import GenerateRequest, ModelCard, TokenPrompt
from pagefall.tiers.assembly import LowerTiers
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.copier import CpuCopier
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.protocol import Key, StorageBackend

TokenList = tuple[int, ...]

NUM_ANSWER_TOKENS: Final = 6
NUM_POOL_TOKENS: Final = 4096
_PATIENCE_SECONDS: Final = 15.0
_ids = itertools.count()


def prompt_of(seed: int, num_tokens: int, *, vocab_size: int = 512) -> TokenList:
    """The same for the same seed, without the model's special tokens."""
    rng = random.Random(seed)
    return tuple(rng.randrange(2, vocab_size) for _ in range(num_tokens))


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class LoadedModel:
    """A checkpoint in memory, for one engine after the other. Its pages' places change nothing about them."""

    def __init__(self, folder: Path, thread: DeviceThread, *, page_size: int = 16, dtype: Dtype = "float32") -> None:
        self.thread = thread
        self.cache = CacheConfig(page_size=page_size, max_total_tokens=NUM_POOL_TOKENS)
        self.scheduler = SchedulerConfig(chunked_prefill_size=128, max_running_requests=8, max_queued_requests=64)
        spec = thread.call(inspect, ModelConfig(model_path=str(folder), dtype=dtype, device="cpu"))
        self.model: PagedModel = thread.call(load, spec, self.cache, self.scheduler, TierConfig(), compile="off")
        with TemporaryDirectory() as forgotten, pytest.MonkeyPatch.context() as patch:
            patch.setenv("PAGEFALL_CACHE_DIR", forgotten)  # of digests: these weights are soon gone
            self.namespace: Namespace = namespace_of(spec, self.cache)

    @property
    def page_size(self) -> int:
        return self.cache.page_size

    @property
    def value_bytes(self) -> int:
        """Of one page in the store."""
        return HostMemory(self.model.kv_pool.page_bytes, 1, pinned=False).value_bytes

    def num_cacheable_pages(self, prompt: TokenList) -> int:
        """The last token of a prompt is always computed."""
        return (len(prompt) - 1) // self.page_size

    def names(self, prompt: TokenList, *, cache_salt: str = "") -> list[Key]:
        """What the prompt's pages are called in the store."""
        digest = self.namespace.digest()
        token_ids = np.array(prompt[: self.num_cacheable_pages(prompt) * self.page_size], dtype=np.uint32)
        keys = page_keys(root_key(digest, cache_salt), token_ids, self.page_size)
        return [Key(f"{digest.hex()[:16]}/{key.hex()}") for key in keys]


class Answer(msgspec.Struct, frozen=True):
    """`by_tier`: how many tokens of the prompt came from each tier that gave any."""

    token_ids: TokenList
    by_tier: dict[Tier, int]


class Engine:
    """What a test does with an engine that runs."""

    def __init__(self, engine: TokenizerActor) -> None:
        self._engine = engine

    async def ask(
        self,
        prompt: TokenList,
        *,
        cache_salt: str = "",
        num_tokens: int = NUM_ANSWER_TOKENS,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> Answer:
        """A greedy answer of `num_tokens`. `on_tokens` is told of so many more of them as they come."""
        request = GenerateRequest(
            request_id=RequestId(f"fault-{next(_ids)}"),
            prompt=TokenPrompt(prompt),
            sampling=SamplingParams(temperature=0.0),
            max_tokens=num_tokens,
            ignore_eos=True,
            cache_salt=cache_salt,
        )
        token_ids: list[int] = []
        async for delta in await self._engine.generate(request):
            token_ids.extend(delta.token_ids)
            on_tokens(len(delta.token_ids))
            if delta.usage is not None:
                by_tier = {tier: num for tier, num in delta.usage.cached_tokens_by_tier.items() if num}
                return Answer(tuple(token_ids), by_tier)
        raise AssertionError("the answer ended without usage")

    async def settle(self) -> None:
        """Until no page is on its way between tiers."""

        def is_settled() -> bool:
            host, device = self.stats().host_pages, self.stats().device_pages
            assert host is not None
            return not (host.pinned or host.leased or device.pinned or device.leased)

        await until(is_settled)

    async def until_breaker(self, state: BreakerState) -> None:
        await until(lambda: self.store().breaker == state)

    async def leave_only_in(self, tier: Tier) -> None:
        """Everything cached goes from the tiers above, once it is below."""
        await self.settle()
        above: dict[Tier, frozenset[Tier]] = {
            "device": frozenset(),
            "host": frozenset({"device"}),
            "storage": frozenset({"device", "host"}),
        }
        await self.flush(*above[tier])

    async def flush(self, *tiers: Tier) -> None:
        assert (await self._engine.flush_cache(frozenset(tiers))).storage_error is None

    def stats(self) -> SchedulerStats:
        return self._engine.stats()

    def store(self) -> ControllerStats:
        stats = self._engine.controller_stats()
        assert stats is not None
        return stats

    def outcomes(self) -> dict[str, int]:
        """Of all pages read from the store so far."""
        return self.store().num_storage_outcomes

    def num_stored(self) -> int:
        """Pages written to the store so far."""
        moved = self.store().transfers.get("host_to_storage")
        return 0 if moved is None else moved.num_pages


@asynccontextmanager
async def engine_over(
    loaded: LoadedModel,
    backend: StorageBackend | None,
    *,
    prefetch: PrefetchPolicy = "wait_complete",
    deadline_seconds: float = 5.0,
    breaker: CircuitBreaker | None = None,
    clock: Callable[[], float] = time.monotonic,
    num_host_tokens: int = 2 * NUM_POOL_TOKENS,
    grace_seconds: float = 10.0,
) -> AsyncIterator[Engine]:
    """`clock` is the breaker's. The store is closed at the end."""
    config = TierConfig(
        enable_hierarchical_cache=True,
        hicache_storage_backend=None if backend is None else "given",
        hicache_storage_prefetch_policy=prefetch,
        hicache_prefetch_threshold=1,
        hicache_storage_deadline=deadline_seconds,
    )
    memory = HostMemory(loaded.model.kv_pool.page_bytes, num_host_tokens // loaded.page_size, pinned=False)
    namespace = loaded.namespace.digest()
    storage = None
    if backend is not None:
        storage = StorageClient(
            backend,
            namespace=namespace,
            memory=memory,
            deadline_seconds=deadline_seconds,
            breaker=breaker or CircuitBreaker(),
            clock=clock,
        )
    info = loaded.model.info
    async with running_engine(
        loaded.model,
        byte_tokenizer(),
        ModelCard(id="tiny", context_length=info.context_length, vocab_size=info.spec.vocab_size, created=0),
        thread=loaded.thread,
        num_pages=info.pool.num_pages,
        eos_token_ids=frozenset(),
        cache=loaded.cache,
        scheduler=loaded.scheduler,
        tiers=LowerTiers(config, memory, CpuCopier(loaded.model.kv_pool, memory), storage, namespace),
        grace_seconds=grace_seconds,
    ) as engine:
        yield Engine(engine)


async def until(condition: Callable[[], bool]) -> None:
    """Fails if it does not come true in time."""
    with anyio.fail_after(_PATIENCE_SECONDS):
        while not condition():
            await anyio.sleep(0.002)


def counted(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was added to counters that only rise."""
    return {name: num - before.get(name, 0) for name, num in after.items() if num != before.get(name, 0)}
