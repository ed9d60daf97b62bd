"""What members of a stack are given beside the work: values found farther away, and those that they could not take.

A fill is a task that nobody waits for. Bytes that wait to be written are bounded; what is beyond is dropped, and comes
up again when it is read again. What a member is owed is known by name alone, and read again from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Corrupt, Failed, GetOutcome, Hit, Key, Miss, PutItem, StorageBackend

logger = logging.getLogger(__name__)

_MAX_WAITING_BYTES: Final = 64 << 20
_MAX_OWED: Final = 16_384
_PAID_AT_ONCE: Final = 16
_ENDING_SECONDS: Final = 1.0

Read = Callable[[int, Sequence[tuple[Key, memoryview]]], Awaitable[list[GetOutcome]]]
"""From the member of this rank. Its hits are verified."""


class Answers(msgspec.Struct, frozen=True):
    """What members said of a key, from the nearest on. If the last is a hit, `buffer` has the value."""

    key: Key
    buffer: memoryview
    outcomes: list[GetOutcome]

    @property
    def is_hit(self) -> bool:
        return isinstance(self.outcomes[-1], Hit)

    @property
    def is_unclear(self) -> bool:
        """A member that could not answer may have the value."""
        return any(isinstance(outcome, Failed) for outcome in self.outcomes)


class _Fill(msgspec.Struct, frozen=True):
    """For one member. `damaged` goes first, so that `items` can take its place."""

    damaged: list[Key] = []
    items: list[PutItem] = []


class Fills:
    """Belongs to one stack, whose `members` it gives and deletes values. `read` is the stack's."""

    def __init__(self, members: Sequence[StorageBackend], read: Read) -> None:
        self.generation = 0
        """Rises when a deletion begins and when it ends."""
        self._members = members
        self._read = read
        self._num_deleting = 0
        self._is_closed = False
        self._num_waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._owed: list[dict[Key, int]] = [{} for _ in members]  # lengths; owed longest first
        self._paying: set[int] = set()

    def after_read(self, reads: Sequence[Answers], *, since: int) -> None:
        """Gives what was found to the members before that lack it or have it damaged. Copies what it needs.

        Damaged values of which a good one may be elsewhere are deleted; the others are the caller's to delete. `since`
        is the generation before the members were asked: what was deleted meanwhile does not come back.
        """
        if not self._may_fill(since):
            return
        fills: defaultdict[int, _Fill] = defaultdict(_Fill)
        num_bytes = 0
        for read in reads:
            lacking = [rank for rank, outcome in enumerate(read.outcomes) if isinstance(outcome, Miss | Corrupt)]
            room = _MAX_WAITING_BYTES - self._num_waiting_bytes - num_bytes
            value = None
            if lacking and read.is_hit and read.buffer.nbytes <= room:
                value = memoryview(bytes(read.buffer))
                num_bytes += value.nbytes
            for rank in lacking:
                if isinstance(read.outcomes[rank], Corrupt) and (read.is_hit or read.is_unclear):
                    fills[rank].damaged.append(read.key)
                if value is not None:
                    fills[rank].items.append(PutItem(read.key, value))
        if fills:
            self._num_waiting_bytes += num_bytes
            self._start(self._fill(fills), partial(self._no_longer_waiting, num_bytes))

    def owe(self, rank: int, key: Key, num_bytes: int) -> None:
        """The member could not take the value, another did. Of too many the longest owed are forgotten."""
        owed = self._owed[rank]
        owed[key] = num_bytes
        if len(owed) > _MAX_OWED:
            del owed[next(iter(owed))]

    def pay(self, rank: int) -> None:
        """The member takes values: begins to give it what it is owed, if anything."""
        if self._owed[rank] and rank not in self._paying and self._may_fill(self.generation):
            self._paying.add(rank)
            self._start(self._pay(rank), partial(self._paying.discard, rank))

    @asynccontextmanager
    async def none_while_deleting(self, keys: Sequence[Key]) -> AsyncIterator[None]:
        """No fill is under way in the body, and none of what was read before its end begins after it.

        Unless a member does not let go of one: nothing waits longer than a second for that.
        """
        self.generation += 1
        self._num_deleting += 1
        try:
            await self._end_tasks()
            for owed in self._owed:
                for key in keys:
                    owed.pop(key, None)
            yield
        finally:
            self._num_deleting -= 1
            self.generation += 1

    async def wait_until_done(self) -> None:
        """Until no fill is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._end_tasks()

    def _may_fill(self, since: int) -> bool:
        return not self._is_closed and not self._num_deleting and self.generation == since

    async def _fill(self, fills: Mapping[int, _Fill]) -> None:
        for rank, fill in fills.items():
            member = self._members[rank]
            try:
                if fill.damaged:
                    await member.delete(fill.damaged)
            except StorageError as error:
                logger.debug("damaged values stay in %s: %s", member.description, error)
            else:
                await member.put(fill.items)

    async def _pay(self, rank: int) -> None:
        """Rests after each batch for as long as that took: those who read come first."""
        owed = self._owed[rank]
        clock = asyncio.get_running_loop().time
        while batch := dict(islice(owed.items(), _PAID_AT_ONCE)):
            started = clock()
            items = await self._read_elsewhere(rank, batch)
            outcomes = await self._members[rank].put(items)
            refused = {item.key for item, each in zip(items, outcomes, strict=True) if isinstance(each, Failed)}
            for key in batch.keys() - refused:  # stored now, or gone everywhere
                owed.pop(key, None)
            if refused:
                return
            await asyncio.sleep(clock() - started)

    async def _read_elsewhere(self, rank: int, lengths: Mapping[Key, int]) -> list[PutItem]:
        """Those of the values that another member still has."""
        missing = {key: memoryview(bytearray(num_bytes)) for key, num_bytes in lengths.items()}
        found: list[PutItem] = []
        for other in range(len(self._members)):
            wanted = list(missing.items())
            if other == rank or not wanted:
                continue
            for (key, buffer), outcome in zip(wanted, await self._read(other, wanted), strict=True):
                if isinstance(outcome, Hit):
                    found.append(PutItem(key, buffer))
                    del missing[key]
        return found

    def _no_longer_waiting(self, num_bytes: int) -> None:
        self._num_waiting_bytes -= num_bytes

    def _start(self, fill: Coroutine[Any, Any, None], when_done: Callable[[], None]) -> None:
        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            when_done()
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("a bug in a member of a stacked store", exc_info=error)

        task = asyncio.create_task(fill)
        self._tasks.add(task)
        task.add_done_callback(end)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_ENDING_SECONDS)
