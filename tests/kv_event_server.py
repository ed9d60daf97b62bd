"""The contents of one server, and its `GET /cache/events` as lines: what the router's reader is tested against."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np

from pagefall.kv_events import Beat, Cleared, Entered, Held, Hello, KvEvent, KvLine, Left, SnapshotEnd
from pagefall.messages import Tier
from pagefall.router.layout import PageLayout

TIERS: tuple[Tier, ...] = ("device", "host", "storage")


def packed(names: Iterable[int]) -> bytes:
    return np.array(list(names), dtype="<u8").tobytes()


class KvEventServer:
    """`num_remembered` events can be told again; who missed more needs a snapshot. `store` is which store it has."""

    def __init__(self, layout: PageLayout, *, num_remembered: int = 8, store: str | None = "") -> None:
        self.layout = layout
        self.store = store
        self.num_device_pages = 100
        self.contents: dict[Tier, set[int]] = {tier: set() for tier in TIERS}
        self._num_lives = 1
        self._number = 0
        self._recent: deque[KvEvent] = deque(maxlen=num_remembered)

    @property
    def epoch(self) -> str:
        return f"life {self._num_lives}"

    def restart(self) -> None:
        """Everything is forgotten; numbers begin anew, and mean something else."""
        self.contents = {tier: set() for tier in TIERS}
        self._num_lives += 1
        self._number = 0
        self._recent.clear()

    def enter(self, tier: Tier, names: Iterable[int]) -> KvEvent:
        names = list(names)
        self.contents[tier].update(names)
        return self._publish(Entered(number=self._number + 1, tier=tier, names=packed(names)))

    def leave(self, tier: Tier, names: Iterable[int]) -> KvEvent:
        names = list(names)
        self.contents[tier].difference_update(names)
        return self._publish(Left(number=self._number + 1, tier=tier, names=packed(names)))

    def clear(self, tier: Tier) -> KvEvent:
        self.contents[tier].clear()
        return self._publish(Cleared(number=self._number + 1, tier=tier))

    def beat(self) -> KvLine:
        return Beat(number=self._number)

    def open(self, epoch: str | None = None, after: int | None = None) -> Iterator[KvLine]:
        """The lines up to now, for a reader that asks so."""
        if epoch == self.epoch and after is not None:
            missed = [event for event in self._recent if event.number > after]
            if len(missed) == self._number - after:
                yield self._hello(has_snapshot=False)
                yield from missed
                return
        yield self._hello(has_snapshot=True)
        for tier, names in self.contents.items():
            ordered = sorted(names)
            for start in range(0, len(ordered), 3):
                yield Held(tier=tier, names=packed(ordered[start : start + 3]))
        yield SnapshotEnd(number=self._number)

    def _publish(self, event: KvEvent) -> KvEvent:
        self._number = event.number
        self._recent.append(event)
        return event

    def _hello(self, *, has_snapshot: bool) -> Hello:
        return Hello(
            epoch=self.epoch,
            number=self._number,
            model="model",
            namespace=self.layout.namespace.hex(),
            page_size=self.layout.page_size,
            has_snapshot=has_snapshot,
            store=self.store,
            num_device_pages=self.num_device_pages,
        )
