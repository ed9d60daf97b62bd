"""The threads of a file store, and the rule that cancelling waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import anyio

from pagefall_storage.errors import StorageError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Stop:
    """A request to end an operation soon: no further file is begun."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()


class FileThreads:
    """`num_threads` threads that work through batches of files. Belongs to one event loop."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pagefall-file")
        self._under_way: dict[asyncio.Task[Any], Stop] = {}

    async def operate(self, operation: Callable[[Stop], Coroutine[Any, Any, ResultT]]) -> ResultT:
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

    async def run(self, job: Callable[[], ResultT]) -> ResultT:
        """Runs one job on one thread. To be called in an operation."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, job)

    async def spread(
        self, function: Callable[[ItemT], ResultT], items: Sequence[ItemT], stop: Stop
    ) -> list[ResultT | None]:
        """`function` of each item, on all threads: None for those that were not begun when `stop` was set.

        To be called in an operation. Each thread takes every n-th item, so that all advance from front to back.
        """
        results: list[ResultT | None] = [None] * len(items)
        num_jobs = min(self._num_threads, len(items))

        def job(first: int) -> None:
            for i in range(first, len(items), num_jobs):
                if stop.is_set():
                    return
                results[i] = function(items[i])

        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(self._pool, job, first) for first in range(num_jobs)]
        if jobs:
            await asyncio.wait(jobs)
        for done in jobs:
            done.result()
        return results

    async def aclose(self) -> None:
        """Stops what is under way, waits for it and ends the threads. May be called again."""
        for stop in self._under_way.values():
            stop.set()
        await _finish(list(self._under_way))
        self._pool.shutdown()


async def _finish(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits until all are done, however often the waiting is cancelled."""
    with anyio.CancelScope(shield=True):
        while pending := [task for task in tasks if not task.done()]:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                continue  # whoever called this raises it again
