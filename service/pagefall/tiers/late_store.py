"""A store that could not be opened when the server started, and is opened when it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.identity import identity_of
from pagefall_storage.protocol import (
    Failed,
    GetOutcome,
    Key,
    PutItem,
    PutOutcome,
    StorageBackend,
    StoredValue,
    Usage,
)


class LateStore:
    """Every operation tries to open the store, and fails until it is open; from then on it is that store's own.

    How long an operation waits, and how often one is tried, is the affair of the deadlines and the breaker before it.
    """

    def __init__(self, name: str, open: Callable[[], Awaitable[StorageBackend]]) -> None:
        """`name` is the backend's. `open` raises `StorageError` and `StorageConfigError`."""
        self._name = name
        self._open = open
        self._opening: asyncio.Task[StorageBackend] | None = None
        self._opened: StorageBackend | None = None
        self._is_closed = False

    @property
    def description(self) -> str:
        return f'storage backend "{self._name}", not open yet' if self._opened is None else self._opened.description

    async def opened(self) -> StorageBackend:
        """The store itself. Opening it goes on when this is cancelled.

        Raises `StorageError` where it cannot be opened now, and `StorageConfigError` where it never can be.
        """
        if self._is_closed:
            raise StorageError("the store is closed")
        if self._opened is None:
            if self._opening is None:
                self._opening = asyncio.create_task(self._open_it())
                self._opening.add_done_callback(self._forget)
            return await asyncio.shield(self._opening)
        return self._opened

    async def contains(self, keys: Sequence[Key]) -> int:
        return await (await self._backend()).contains(keys)

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        try:
            backend = await self._backend()
        except StorageError as error:
            return [Failed("error", str(error))] * len(keys)
        return await backend.get(keys, into)

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        try:
            backend = await self._backend()
        except StorageError as error:
            return [Failed("error", str(error))] * len(items)
        return await backend.put(items)

    async def delete(self, keys: Sequence[Key]) -> int:
        return await (await self._backend()).delete(keys)

    async def scan(self) -> AsyncIterator[StoredValue]:
        async for value in (await self._backend()).scan():
            yield value

    async def usage(self) -> Usage:
        return await (await self._backend()).usage()

    async def identify(self) -> str | None:
        return await identity_of(await self._backend())

    async def aclose(self) -> None:
        """One that is still being opened is closed as soon as it is open: nobody else could."""
        self._is_closed = True
        if self._opened is not None:
            await self._opened.aclose()

    async def _backend(self) -> StorageBackend:
        try:
            return await self.opened()
        except StorageConfigError as error:  # found only now: the server runs already
            raise StorageError(str(error)) from error

    async def _open_it(self) -> StorageBackend:
        opened = await self._open()
        if self._is_closed:
            await opened.aclose()
            raise StorageError("the store is closed")
        self._opened = opened
        return opened

    def _forget(self, opening: asyncio.Task[StorageBackend]) -> None:
        """The next operation tries again. Whoever waited has heard why it failed."""
        self._opening = None
        if not opening.cancelled():
            opening.exception()
