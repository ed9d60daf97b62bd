"""Which pages of a prompt are on their way from lower tiers, and how far they are.

             asked for      in host memory     being copied      on the device
    ABSENT --> FETCHING -------> FETCHED ---------> COPYING ---------> READY
      ^            |                |                  |
      +-- missing, damaged, or overtaken by computing -+

Pages may become ready in any order: computing proceeds from the front, and jumps over what is ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pagefall.cache.host_tier import HostPin
from pagefall.cache.lease import Lease
from pagefall.messages import RequestId, TransferId
from pagefall.scheduling.trace import CacheTrace

ABSENT: Final = 0
FETCHING: Final = 1
FETCHED: Final = 2
COPYING: Final = 3
READY: Final = 4


class Arrivals:
    """Of one request, from the time it comes in until its prompt is computed.

    `states[i]` belongs to page `i` of the prompt; at least the prompt's last token is left to compute. `held` are the
    reserved host pages of fetched pages that are not in the tree yet.
    """

    def __init__(self, num_pages: int, trace: CacheTrace, *, now: float) -> None:
        self.states: npt.NDArray[np.uint8] = np.zeros(num_pages, dtype=np.uint8)
        self.from_storage: npt.NDArray[np.bool_] = np.zeros(num_pages, dtype=np.bool_)
        self.held: dict[int, int] = {}
        self.trace = trace
        """The request's; what happens here is put down there."""
        self.asked_at = now
        self.waits_until = now
        """Computing does not begin on what is being fetched, nor the request, before this time."""
        self.store_number = 0
        """Of the store that was asked (`TierState.store_number`)."""
        self.lookup: TransferId | None = None
        self.fetch: TransferId | None = None
        self.is_fetch_stopped = False
        """Whether the controller was told that no more of `fetch` is wanted."""
        self.rest: tuple[LookupRecord, range] | None = None
        """Pages that the store has, and for which the host had no room yet."""
        self.fetch_began_at = now
        self.num_fetched = 0
        self.seconds_a_page = 0.0
        """Expected of the fetch, until its own pace is known."""
        self.first_seconds = 0.0
        self.low_page = 0
        """Pages below are on the device, or are being computed."""
        self.pin: HostPin | None = None
        """Keeps what the host had of the prompt until the request starts."""
        self.lease: Lease | None = None
        """Set once the request is gone and only the copies under way keep its pages."""
        self.is_abandoned = False
        self.has_started = False
        """Whether the request has device pages, to which pages can go on."""

    @property
    def is_copying(self) -> bool:
        """Whether a copy is writing to device pages of the request."""
        return bool((self.states == COPYING).any())

    def is_waiting(self, now: float) -> bool:
        """Whether the request should still stand back for what it asked of the store."""
        return now < self.waits_until and (self.lookup is not None or self.fetch is not None)

    def fetch_seconds_a_page(self, now: float) -> float:
        """The pace at which pages come from the store just now; infinite if nothing comes any more."""
        elapsed = now - self.fetch_began_at
        if self.num_fetched:
            return elapsed / self.num_fetched
        return self.seconds_a_page if elapsed <= 2 * self.first_seconds else float("inf")

    def next_in(self, start: int, states: tuple[int, ...]) -> int:
        """The first page from `start` on in one of `states`; the number of pages if there is none."""
        hits = np.flatnonzero(np.isin(self.states[start:], states))
        return start + int(hits[0]) if len(hits) else len(self.states)

    def run_of(self, start: int, state: int) -> int:
        """One past the last page of the run of `state` that begins at `start`."""
        others = np.flatnonzero(self.states[start:] != state)
        return start + int(others[0]) if len(others) else len(self.states)


@dataclass(slots=True, eq=False)
class LookupRecord:
    """Asks for the pages from `first_page` on; `keys[i]` is page `first_page + i`'s."""

    arrivals: Arrivals
    request_id: RequestId
    first_page: int
    keys: tuple[bytes, ...]
