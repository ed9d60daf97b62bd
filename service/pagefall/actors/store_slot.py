"""The place of the store: which one is attached, and who still uses it or one before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pagefall.tiers.storage_client import StorageClient


class StoreSlot:
    """Belongs to the cache controller, whose `transfers` all tasks are.

    A store that is replaced goes on to serve those who came before, begins no more writes, and is closed when the last
    of them has ended: their host pages may be written to until then.
    """

    def __init__(self, storage: StorageClient | None) -> None:
        self.attached = storage
        self.latest = storage
        """The store that is attached, or else the last one that was."""
        self.changed = asyncio.Event()
        """Set whenever another one is attached, or none; for one listener to clear."""
        self._users: dict[StorageClient, set[asyncio.Task[None]]] = {}
        if storage is not None:
            self._users[storage] = set()

    def use(self, work: Callable[[StorageClient], Coroutine[Any, Any, None]], transfers: asyncio.TaskGroup) -> None:
        """Begins `work` on the store that is attached now, whichever is when it ends."""
        if self.attached is None:
            raise RuntimeError("asked for a store, of which there is none")
        task = transfers.create_task(work(self.attached))
        users = self._users[self.attached]
        users.add(task)
        task.add_done_callback(users.discard)

    def replace(self, storage: StorageClient | None, transfers: asyncio.TaskGroup) -> None:
        """From now on `storage` is attached, or none."""
        former, self.attached = self.attached, storage
        self.changed.set()
        if storage is not None:
            self.latest = storage
            self._users[storage] = set()
        if former is not None:
            former.retire()
            transfers.create_task(self._close_when_unused(former))

    async def aclose(self) -> None:
        """Closes all that are not closed yet, whoever uses them."""
        await asyncio.gather(*(storage.aclose() for storage in self._users))

    async def _close_when_unused(self, storage: StorageClient) -> None:
        while users := self._users[storage]:
            await asyncio.wait(users)
        await storage.aclose()
        del self._users[storage]
