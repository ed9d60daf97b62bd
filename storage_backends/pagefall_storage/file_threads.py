"""The threads of a file store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pagefall_storage.operations import Operations, Stop

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class FileThreads:
    """`num_threads` threads that work through batches of files. Belongs to one event loop."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pagefall-file")
        self._operations = Operations()

    async def operate(self, operation: Callable[[Stop], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Runs `operation` as `Operations.run` does."""
        return await self._operations.run(operation)

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
        await self._operations.aclose()
        self._pool.shutdown()
