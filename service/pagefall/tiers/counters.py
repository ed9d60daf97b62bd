"""What moved between tiers, added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pagefall.messages import Direction, TransferStats


class TransferCounters:
    """Owned by whoever makes the transfers. `transfers` is a snapshot: it is replaced, never changed."""

    def __init__(self) -> None:
        self.transfers: dict[Direction, TransferStats] = {}

    def add(self, direction: Direction, *, num_pages: int, num_bytes: int, seconds: float) -> None:
        """One more transfer, if it moved anything."""
        if not num_pages:
            return
        sums = self.transfers.get(direction, TransferStats())
        added = TransferStats(
            num_pages=sums.num_pages + num_pages,
            num_bytes=sums.num_bytes + num_bytes,
            num_transfers=sums.num_transfers + 1,
            seconds=sums.seconds + seconds,
        )
        self.transfers = {**self.transfers, direction: added}


@dataclass(slots=True)
class StorageCounters:
    """What was asked of a store and of those before it, so that the counts of a server only rise.

    `num_outcomes` and `num_failures` are those of `ControllerStats`.
    """

    transfers: TransferCounters = field(default_factory=TransferCounters)
    num_outcomes: Counter[str] = field(default_factory=Counter)
    num_failures: Counter[str] = field(default_factory=Counter)
