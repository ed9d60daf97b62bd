"""Operations whose threads use the caller's memory: cancelling one waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import anyio

from pagefall_storage.errors import StorageError

ResultT = TypeVar("ResultT")


class Stop:
    """A request to end an operation soon: nothing further of it is begun. Set on the event loop, read anywhere."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()
            for callback in self._callbacks:
                callback()

    def is_set(self) -> bool:
        return self._event.is_set()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Calls it once, when this is set: now, if it is already."""
        if self._event.is_set():
            callback()
        else:
            self._callbacks.append(callback)


class Operations:
    """What is under way in a store. Belongs to one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[Any], Stop] = {}

    async def run(self, operation: Callable[[Stop], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Runs `operation` to its end, come what may.

        Cancelling sets its `Stop`, waits for it, and takes effect then, unless it failed with something else than a
        `StorageError`: a bug is not to be lost.
        """
        stop = Stop()
        task = asyncio.create_task(operation(stop))
        self._under_way[task] = stop
        task.add_done_callback(self._under_way.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            await _finish([task])
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, StorageError):
                raise error from None
            raise

    async def aclose(self) -> None:
        """Stops what is under way and waits for it. May be called again."""
        for stop in self._under_way.values():
            stop.set()
        await _finish(list(self._under_way))


async def _finish(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits until all are done, however often the waiting is cancelled."""
    with anyio.CancelScope(shield=True):
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                continue  # whoever called this raises it again
