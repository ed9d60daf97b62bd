"""The tiers below a model's device pool, put together: host memory, the copier, and the client of the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagefall.cache.namespace import Namespace
from pagefall.config import TierConfig
from pagefall.model.engine import PagedModel
from pagefall.model.memory import free_host_memory
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.copier import CpuCopier, PageCopier
from pagefall.tiers.counters import StorageCounters
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.manifest import encode_manifest
from pagefall.tiers.opening import OpenStore, open_at_start, open_to_attach
from pagefall.tiers.sizing import num_host_pages
from pagefall.tiers.staged_copier import StagedCopier
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import StorageBackend

_log = logging.getLogger("pagefall.tiers")


class StorageClients:
    """Makes the clients of a server's stores, one after the other: all for the same pages, with one set of counters."""

    def __init__(self, config: TierConfig, memory: HostMemory, namespace: Namespace) -> None:
        self._config = config
        self._memory = memory
        self._namespace = namespace
        self._counters = StorageCounters()

    async def of(self, backend: StorageBackend, *, name: str, is_answering: bool = True) -> StorageClient:
        """The client of an open store. Leaves the namespace's manifest there, so that tools can tell whose pages are
        whose: now, or once the store takes pages.
        """
        client = StorageClient(
            backend,
            namespace=self._namespace.digest(),
            memory=self._memory,
            deadline_seconds=self._config.hicache_storage_deadline,
            breaker=CircuitBreaker(),
            clock=time.monotonic,
            name=name,
            counters=self._counters,
        )
        manifest = encode_manifest(self._namespace)
        if not is_answering:
            client.leave_later(*manifest)
        elif not await client.leave(*manifest):
            _log.warning("the store does not take the manifest of this model's pages: %s", backend.description)
        return client

    async def open(self, name: str, extra_config: Mapping[str, Any]) -> StorageClient:
        """The client of a store that takes the place of another. Raises `StoreRefusedError`."""
        backend = await open_to_attach(
            name,
            extra_config,
            value_bytes=self._memory.value_bytes,
            deadline_seconds=self._config.hicache_storage_deadline,
        )
        return await self.of(backend, name=name)


@dataclass(slots=True)
class LowerTiers:
    """What the cache controller works with. `namespace` is the digest under which pages are known.

    `storage` None: there is no store. `clients` None: there can be no other.
    """

    config: TierConfig
    memory: HostMemory
    copier: PageCopier
    storage: StorageClient | None
    namespace: bytes
    clients: StorageClients | None = None


async def open_store(config: TierConfig, *, page_bytes: int) -> OpenStore | None:
    """The store that the flags name, see `open_at_start`. Raises `ConfigError`."""
    return await open_at_start(config, value_bytes=HEADER_BYTES + page_bytes)


def host_tier(model: PagedModel, config: TierConfig) -> tuple[HostMemory, PageCopier]:
    """The host pool's memory, sized by the flags, and what copies to it and from it. Raises `ConfigError`."""
    pool, device = model.kv_pool, model.info.spec.device
    num_pages = num_host_pages(
        config, page_bytes=pool.page_bytes, num_device_pages=pool.num_pages, free_bytes=free_host_memory()
    )
    memory = HostMemory(pool.page_bytes, num_pages, pinned=device.type == "cuda")
    return memory, CpuCopier(pool, memory) if device.type == "cpu" else StagedCopier(pool, memory)


async def lower_tiers(
    config: TierConfig,
    host: tuple[HostMemory, PageCopier],
    backend: StorageBackend | None,
    namespace: Namespace,
    *,
    is_answering: bool = True,
) -> LowerTiers:
    """`is_answering`: whether the store behind `backend` did when it was opened."""
    memory, copier = host
    clients = StorageClients(config, memory, namespace)
    storage = None
    if backend is not None:
        storage = await clients.of(backend, name=config.hicache_storage_backend or "", is_answering=is_answering)
    return LowerTiers(config, memory, copier, storage, namespace.digest(), clients)
