"""The tiers below a model's device pool, put together: host memory, the copier, and the client of the store."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

import msgspec

from pagefall.cache.namespace import Namespace
from pagefall.config import TierConfig
from pagefall.errors import ConfigError
from pagefall.model.engine import PagedModel
from pagefall.model.memory import free_host_memory
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.copier import CpuCopier, PageCopier
from pagefall.tiers.guarded_member import guarded_stack
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.manifest import encode_manifest
from pagefall.tiers.sizing import num_host_pages
from pagefall.tiers.staged_copier import StagedCopier
from pagefall.tiers.storage_client import StorageClient
from pagefall_storage.errors import StorageConfigError
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.registry import open_backend

_log = logging.getLogger("pagefall.tiers")


@dataclass(slots=True)
class LowerTiers:
    """What the cache controller works with. `storage` None: there is no store."""

    config: TierConfig
    memory: HostMemory
    copier: PageCopier
    storage: StorageClient | None
    namespace: bytes


async def open_store(config: TierConfig, *, page_bytes: int) -> StorageBackend | None:
    """The backend that the flags name, open; None if they name none. Raises `ConfigError`."""
    if config.hicache_storage_backend is None:
        return None
    extra = msgspec.json.decode(config.hicache_storage_backend_extra_config or "{}", type=dict[str, object])
    value_bytes = HEADER_BYTES + page_bytes
    stack = partial(
        guarded_stack,
        deadline_seconds=config.hicache_storage_deadline,
        value_bytes=value_bytes,
        clock=time.monotonic,
    )
    try:
        return await open_backend(config.hicache_storage_backend, extra, value_bytes=value_bytes, stack=stack)
    except StorageConfigError as error:
        raise ConfigError(str(error)) from error


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
    namespace: Namespace | None,
) -> LowerTiers:
    """`namespace` is None without a store. Leaves its manifest in the store, so that tools can tell whose pages are
    whose; a store that cannot take it now is no reason not to start.
    """
    memory, copier = host
    if backend is None or namespace is None:
        return LowerTiers(config, memory, copier, None, b"")
    digest = namespace.digest()
    storage = StorageClient(
        backend,
        namespace=digest,
        memory=memory,
        deadline_seconds=config.hicache_storage_deadline,
        breaker=CircuitBreaker(),
        clock=time.monotonic,
    )
    if not await storage.leave(*encode_manifest(namespace)):
        _log.warning("the store does not take the manifest of this model's pages: %s", backend.description)
    return LowerTiers(config, memory, copier, storage, digest)
