"""Several stores as one, nearest first: read from the nearest that has a value, written to all of them.

A `get` asks the next member for what the nearer ones do not have, cannot give, or have damaged. A value found farther
away is put into the nearer members afterwards (`stacked_fills`), in place of a damaged one. A `put` goes to all members
at once and returns when each has answered: what is called stored is in at least one of them, none of it waits in memory
for a crash to lose it, and other servers see it in the members that they share. A member that could not take a value
that another took is given it later.

A member that fails is as good as one that has nothing: only where none can answer does the stack fail. How long a
member may take is its own affair, or that of a wrapper around it: the stack waits for it.

Damaged values have to be told from good ones before another is looked for and before one is promoted: that is what
`verify` is for. Without it, whatever has the right length is good.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import cycle
from typing import TypeVar

from pagefall_storage.errors import StorageError
from pagefall_storage.identity import identity_of
from pagefall_storage.keys import check_keys
from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    GetOutcome,
    Hit,
    Key,
    Miss,
    PutItem,
    PutOutcome,
    StorageBackend,
    Stored,
    StoredValue,
    Usage,
)
from pagefall_storage.stacked_fills import Answers, Fills

T = TypeVar("T")

Verify = Callable[[Key, memoryview], Hit | Corrupt]
"""Whether the value is the one of this key, undamaged. Called on a thread; raises nothing."""


class Stacked:
    """`members`, nearest first; at least one. They are closed with the stack. Belongs to one event loop."""

    def __init__(self, members: Sequence[StorageBackend], *, verify: Verify | None = None) -> None:
        if not members:
            raise ValueError("a stack has at least one member")
        self.members = tuple(members)
        self._verify = verify
        self._fills = Fills(self.members, self._read)

    @property
    def description(self) -> str:
        return ", then ".join(member.description for member in self.members)

    async def contains(self, keys: Sequence[Key]) -> int:
        """Counts on with the next member where one has no more, until none has."""
        check_keys(keys)
        num_present = num_stuck = 0
        errors: dict[int, StorageError] = {}
        for rank, member in cycle(enumerate(self.members)):
            if num_present == len(keys) or num_stuck == len(self.members):
                break
            num_more = 0
            if rank not in errors:
                try:
                    num_more = await member.contains(keys[num_present:])
                except StorageError as error:
                    errors[rank] = error
            num_present += num_more
            num_stuck = 1 if num_more else num_stuck + 1
        if len(errors) == len(self.members):
            raise errors[0]
        return num_present

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        since = self._fills.generation
        reads = [Answers(key, buffer, []) for key, buffer in zip(keys, into, strict=True)]
        missing = reads
        for rank in range(len(self.members)):
            if not missing:
                break
            read = await self._read(rank, [(each.key, each.buffer) for each in missing])
            for each, outcome in zip(missing, read, strict=True):
                each.outcomes.append(outcome)
            missing = [each for each in missing if not each.is_hit]
        self._fills.after_read(reads, since=since)
        return [_outcome(each) for each in reads]

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        check_keys(item.key for item in items)
        answers = await self._ask_all(lambda member: member.put(items))
        outcomes: list[PutOutcome] = []
        for item, of_members in zip(items, zip(*answers, strict=True), strict=True):
            stored = [outcome for outcome in of_members if isinstance(outcome, Stored)]
            outcomes.append(stored[0] if stored else of_members[0])
            for rank, outcome in enumerate(of_members):
                if stored and isinstance(outcome, Failed) and outcome.kind != "full":
                    self._fills.owe(rank, item.key, item.value.nbytes)
        for rank, of_member in enumerate(answers):
            if any(isinstance(outcome, Stored) for outcome in of_member):
                self._fills.pay(rank)
        return outcomes

    async def delete(self, keys: Sequence[Key]) -> int:
        """From all members. Raises `StorageError` if one of them cannot: what it has would be found again.

        How many there were is what the member says that had most of them.
        """
        check_keys(keys)

        async def delete(member: StorageBackend) -> int | StorageError:
            try:
                return await member.delete(keys)
            except StorageError as error:
                return error

        async with self._fills.none_while_deleting(keys):
            counts = await self._ask_all(delete)
        num_deleted = 0
        for count in counts:
            if isinstance(count, StorageError):
                raise count
            num_deleted = max(num_deleted, count)
        return num_deleted

    async def scan(self) -> AsyncIterator[StoredValue]:
        """Each key once, as the nearest member tells of it. Keeps the keys in memory meanwhile."""
        seen: set[Key] = set()
        for member in self.members:
            async for value in member.scan():
                if value.key not in seen:
                    seen.add(value.key)
                    yield value

    async def usage(self) -> Usage:
        """Lists everything, as `scan` does: a value in several members counts once."""
        num_values = num_bytes = 0
        async for value in self.scan():
            num_values += 1
            num_bytes += value.num_bytes
        return Usage(num_values=num_values, num_bytes=num_bytes, max_bytes=None)

    async def identify(self) -> str | None:
        """The farthest's: whoever has that one reads there what it has taken."""
        return await identity_of(self.members[-1])

    async def aclose(self) -> None:
        await self._fills.aclose()
        await self._ask_all(lambda member: member.aclose())

    async def _read(self, rank: int, wanted: Sequence[tuple[Key, memoryview]]) -> list[GetOutcome]:
        outcomes = await self.members[rank].get([key for key, _ in wanted], [buffer for _, buffer in wanted])
        if self._verify is None:
            return outcomes
        verify = self._verify

        def verified() -> list[GetOutcome]:
            return [
                verify(key, buffer) if isinstance(outcome, Hit) else outcome
                for (key, buffer), outcome in zip(wanted, outcomes, strict=True)
            ]

        return await asyncio.to_thread(verified)

    async def _ask_all(self, ask: Callable[[StorageBackend], Awaitable[T]]) -> list[T]:
        """What each member answers, all asked at once. Cancelling waits for all, as the protocol asks of each."""
        answers = await asyncio.gather(*map(ask, self.members), return_exceptions=True)
        results = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            results.append(answer)
        return results


def _outcome(answers: Answers) -> GetOutcome:
    """`Corrupt` makes the caller delete the value everywhere: it is not said while a good one may be somewhere."""
    if answers.is_hit:
        return answers.outcomes[-1]
    of_kind: dict[type, GetOutcome] = {type(outcome): outcome for outcome in reversed(answers.outcomes)}
    if Corrupt in of_kind:
        return of_kind.get(Failed, of_kind[Corrupt])
    return of_kind.get(Miss, answers.outcomes[0])
