"""What the scheduler knows of the tiers below the device: transfers under way, and what they cost."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagefall.cache.host_tier import HostPin, HostTier, OffloadLease
from pagefall.cache.lease import Lease
from pagefall.cache.node import Node
from pagefall.config import TierConfig
from pagefall.messages import PageIds, Tier, ToController, TransferId
from pagefall.scheduling.arrivals import Arrivals, LookupRecord
from pagefall.scheduling.cost_model import LinkSpeed

_MAX_PENDING_BACKUPS: Final = 16384
"""Nodes that may wait to be written to the store; beyond that the oldest are given up, for a later hit to queue."""


@dataclass(slots=True, eq=False)
class FetchRecord:
    """Position `i` of the fetch is page `pages[i]` of the prompt, read into `host_page_ids[i]`.

    The host pages not `reported` yet may be written to until the fetch has ended. `rest`: pages of the prompt that the
    store has, and for which the host had no room.
    """

    lookup: LookupRecord
    pages: npt.NDArray[np.int64]
    host_page_ids: PageIds
    reported: npt.NDArray[np.bool_]
    rest: range


@dataclass(slots=True, eq=False)
class LoadRecord:
    """`pages` of the prompt are on their way to the lease's own device pages, from pinned or from held host pages."""

    arrivals: Arrivals
    lease: Lease
    pages: npt.NDArray[np.int64]
    pin: HostPin | None


@dataclass(slots=True, eq=False)
class BackupRecord:
    """`pin` is written to the store with this number."""

    pin: HostPin
    store_number: int


@dataclass(slots=True, eq=False)
class FlushRecord:
    """A flush that is complete but for the store."""

    flush_id: int
    num_pages: dict[Tier, int]


def unknown_storage_link() -> LinkSpeed:
    """What is expected of a store before anything was measured: a local disk."""
    return LinkSpeed(first_seconds=0.002, bytes_per_second=5e8)


class TierCounters(msgspec.Struct):
    """They only rise; `SchedulerStats` publishes them under the same names."""

    num_lookups: int = 0
    num_fetched_pages: int = 0
    num_overtaken_pages: int = 0
    num_declined_fetches: int = 0
    num_skipped_offloads: int = 0
    num_skipped_backups: int = 0


class TierState:
    """Owned by the scheduler. `outbox` is what the cache controller must be told; the actor sends it."""

    def __init__(self, config: TierConfig, host: HostTier, *, page_bytes: int, has_storage: bool) -> None:
        self.config = config
        self.host = host
        self.page_bytes = page_bytes
        self.has_storage = has_storage
        self.store_number = 0
        """Rises whenever the store is another one, or gone: answers of a former one say nothing of the present."""
        self.outbox: list[ToController] = []
        self.host_link = LinkSpeed(first_seconds=0.0, bytes_per_second=4e9)
        self.storage_link = unknown_storage_link()
        self.offloads: dict[TransferId, OffloadLease] = {}
        self.loads: dict[TransferId, LoadRecord] = {}
        self.lookups: dict[TransferId, LookupRecord] = {}
        self.fetches: dict[TransferId, FetchRecord] = {}
        self.backups: dict[TransferId, BackupRecord] = {}
        self.flushes: dict[TransferId, FlushRecord] = {}
        self.pending_backups: deque[Node] = deque(maxlen=_MAX_PENDING_BACKUPS)
        self.counters = TierCounters()
        self._ids = itertools.count()

    @property
    def is_quiet(self) -> bool:
        """No transfer is under way, and none waits."""
        return not (
            self.offloads
            or self.loads
            or self.lookups
            or self.fetches
            or self.backups
            or self.flushes
            or self.pending_backups
        )

    @property
    def num_fetchable_pages(self) -> int:
        """How many host pages may be reserved for fetches now: half of the pool, less what already is."""
        return max(0, self.host.num_pages // 2 - self.host.num_reserved)

    @property
    def is_backing_up(self) -> bool:
        """Whether something is being written to the present store."""
        return any(record.store_number == self.store_number for record in self.backups.values())

    def next_id(self) -> TransferId:
        return TransferId(next(self._ids))
