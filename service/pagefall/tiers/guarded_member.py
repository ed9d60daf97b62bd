"""A member of a stacked store, behind its own deadline and breaker: one that is slow, silent or broken costs the others
its deadline once, and then nothing until a probe finds it well.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pagefall.tiers.breaker import Operation
from pagefall.tiers.guarded_store import GuardedStore, Trouble, Unanswered, one_each, read_trouble, write_trouble
from pagefall_storage.errors import StorageError
from pagefall_storage.identity import identity_of
from pagefall_storage.protocol import (
    Failed,
    GetOutcome,
    Key,
    PutItem,
    PutOutcome,
    StoredValue,
    Usage,
)

T = TypeVar("T")


class GuardedMember:
    """A backend whose operations end, with `Failed` or `StorageError` where the store's own would not.

    Only for memory that the store still uses is it waited longer: a buffer is the caller's again when `get` and `put`
    return. `scan` and `usage` are for tools and have no deadline.
    """

    def __init__(self, store: GuardedStore) -> None:
        self._store = store
        self._backend = store.backend

    @property
    def description(self) -> str:
        return self._backend.description

    async def contains(self, keys: Sequence[Key]) -> int:
        if not keys:
            return 0

        async def contains() -> int:
            num_present = operator.index(await self._backend.contains(keys))
            if not 0 <= num_present <= len(keys):
                raise ValueError(f"contains: {num_present} of {len(keys)} keys")
            return num_present

        return _answered(await self._store.call(contains, kind="lookup", key=keys[0]))

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        if not keys:
            return []

        async def get() -> list[GetOutcome]:
            return one_each(await self._backend.get(keys, into), keys, GetOutcome)

        read = await self._lend(get, "read", keys[0], read_trouble)
        return [_failure(read) for _ in keys] if isinstance(read, Unanswered) else read

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        if not items:
            return []

        async def put() -> list[PutOutcome]:
            return one_each(await self._backend.put(items), items, PutOutcome)

        written = await self._lend(put, "write", items[0].key, write_trouble)
        return [_failure(written) for _ in items] if isinstance(written, Unanswered) else written

    async def delete(self, keys: Sequence[Key]) -> int:
        if not keys:
            return 0
        return _answered(await self._store.call(lambda: self._backend.delete(keys), kind="write", key=keys[0]))

    def scan(self) -> AsyncIterator[StoredValue]:
        return self._backend.scan()

    async def usage(self) -> Usage:
        return await self._backend.usage()

    async def identify(self) -> str | None:
        return await identity_of(self._backend)

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _lend(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        kind: Operation,
        key: Key,
        judge: Callable[[T], Trouble | None],
    ) -> T | Unanswered:
        """Returns, or is cancelled, once the store uses none of the operation's memory any more."""
        under_way: list[asyncio.Future[Any]] = []

        async def tracked() -> T:
            under_way.extend(filter(None, [asyncio.current_task()]))
            return await operation()

        try:
            return await self._store.call(tracked, kind=kind, key=key, judge=judge)
        finally:
            await _end(under_way)


async def _end(under_way: Sequence[asyncio.Future[Any]]) -> None:
    """Returns when all are done, however often it is cancelled meanwhile; that is raised then."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [future for future in under_way if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _answered(answer: int | Unanswered) -> int:
    if isinstance(answer, Unanswered):
        raise StorageError(_failure(answer).reason)
    return answer


def _failure(unanswered: Unanswered) -> Failed:
    match unanswered.answer:
        case "timeout":
            return Failed("timeout", "no answer in time")
        case "error":
            return Failed("error", "it failed")
        case "breaker_open":
            return Failed("error", "left alone for a while")
