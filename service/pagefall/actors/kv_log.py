"""The last things that entered and left the tiers, numbered, for whoever follows them over HTTP.

The scheduler publishes, readers pull, each at its own pace: one that is too slow finds that what it wants is forgotten,
and begins anew with a snapshot. So memory is bounded however many there are.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pagefall.cache.changes import TierChange
from pagefall.kv_events import Cleared, Entered, KvEvent, Left, encode_line, page_names

_MAX_BYTES: Final = 16 * 2**20


class KvEventLog:
    """`namespace` (a digest) and `page_size` are what page keys are computed with."""

    def __init__(self, *, namespace: bytes, page_size: int, max_bytes: int = _MAX_BYTES) -> None:
        self.namespace = namespace
        self.page_size = page_size
        self.epoch = uuid.uuid4().hex
        self.number = 0
        """Of the last event; 0 before the first."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lines: deque[bytes] = deque()
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """The server leaves: readers need not wait for more."""
        self._is_closed = True
        self._wake()

    def publish(self, changes: Sequence[TierChange]) -> None:
        """In the order in which they happened. With another store a new epoch begins, which has no events yet."""
        if not changes:
            return
        for change in changes:
            if not change.keys and change.cause is None:
                self.epoch = uuid.uuid4().hex
                self._lines.clear()
                self._num_bytes = 0
                continue
            self.number += 1
            line = encode_line(_event(self.number, change))
            self._lines.append(line)
            self._num_bytes += len(line)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._lines.popleft())
        self._wake()

    def since(self, number: int) -> list[bytes] | None:
        """The lines of the events after `number`, of this epoch; None where some are forgotten, or it never was."""
        num_new = self.number - number
        if not 0 <= num_new <= len(self._lines):
            return None
        return list(itertools.islice(self._lines, len(self._lines) - num_new, None))

    async def wait(self, number: int, *, seconds: float) -> None:
        """Returns when there are events after `number`, when the log is closed, or after `seconds`."""
        if self.number != number or self._is_closed:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _event(number: int, change: TierChange) -> KvEvent:
    if not change.keys:
        return Cleared(number=number, tier=change.tier)
    names = page_names(change.keys)
    if change.cause is None:
        return Entered(number=number, tier=change.tier, names=names)
    return Left(number=number, tier=change.tier, names=names)
