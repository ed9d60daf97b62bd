"""The threads of an S3 store: a few requests at once, of all operations in turns."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pagefall_storage.operations import Stop
from pagefall_storage.s3_errors import RequestFailed
from pagefall_storage.s3_limiter import Answer, Limiter, Ticket
from pagefall_storage.s3_loan import RecalledError

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

STOPPED: Final = RequestFailed("error", "the store was closed meanwhile")


class RequestThreads:
    """Belongs to one event loop. Requests wait here, not in the pool, so that a refusal holds back all that follow."""

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pagefall-s3")
        self._limiter = Limiter(num_threads)
        self._turns: deque[_Batch[Any, Any]] = deque()

    async def spread(
        self,
        request: Callable[[ItemT], ResultT],
        items: Sequence[ItemT],
        stop: Stop,
        *,
        recall: Callable[[ItemT], bool] = lambda _: False,
        settle_seconds: float = 0.0,
    ) -> list[ResultT | RequestFailed]:
        """`request` of each item, begun in order; `STOPPED` for those not done when `stop` was set.

        Those under way then are left to end by themselves, after `settle_seconds` if they take longer. Only those for
        which `recall` says that they use the caller's memory are waited for without a limit.
        """
        if not items:
            return []
        batch = _Batch(request, items)
        stop.on_set(batch.wake)
        if not stop.is_set():
            self._turns.append(batch)
            self._pump()
            await batch.is_over.wait()
        if not batch.is_done():
            if batch in self._turns:
                self._turns.remove(batch)
            lent = [future for index, future in batch.under_way.items() if recall(items[index])]
            if settle_seconds and batch.under_way:
                await asyncio.wait(batch.under_way.values(), timeout=settle_seconds)
            if lent:
                await asyncio.wait(lent)
        return batch.results()

    async def aclose(self) -> None:
        """Ends the threads: at once, or when a request that stalls has run into its timeout."""
        await asyncio.to_thread(self._pool.shutdown)

    def _pump(self) -> None:
        while self._turns and self._limiter.has_room():
            batch = self._turns.popleft()
            index = batch.begin()
            if batch.has_waiting():
                self._turns.append(batch)
            future = asyncio.get_running_loop().run_in_executor(self._pool, batch.answer, index)
            batch.under_way[index] = future
            future.add_done_callback(partial(self._ended, batch, index, self._limiter.begin()))

    def _ended(self, batch: _Batch[Any, Any], index: int, ticket: Ticket, future: asyncio.Future[Any]) -> None:
        batch.end(index, future)
        answer = _answer(future)
        self._limiter.end(ticket, answer)
        if answer == "slow_down":
            logger.info("the store asks for fewer requests: at most %d at once for now", self._limiter.limit)
        self._pump()


class _Batch(Generic[ItemT, ResultT]):
    """Requests of one operation. `is_over` is set when all are done, or `wake` was called."""

    def __init__(self, request: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> None:
        self.is_over = asyncio.Event()
        self.under_way: dict[int, asyncio.Future[ResultT | RequestFailed]] = {}
        self._request = request
        self._items = items
        self._num_begun = 0
        self._done: dict[int, asyncio.Future[ResultT | RequestFailed]] = {}

    def answer(self, index: int) -> ResultT | RequestFailed:
        """On a thread."""
        try:
            return self._request(self._items[index])
        except RequestFailed as failed:
            return failed
        except RecalledError:
            return STOPPED

    def begin(self) -> int:
        self._num_begun += 1
        return self._num_begun - 1

    def end(self, index: int, future: asyncio.Future[ResultT | RequestFailed]) -> None:
        del self.under_way[index]
        self._done[index] = future
        if self.is_done():
            self.is_over.set()

    def wake(self) -> None:
        self.is_over.set()

    def has_waiting(self) -> bool:
        return self._num_begun < len(self._items)

    def is_done(self) -> bool:
        return len(self._done) == len(self._items)

    def results(self) -> list[ResultT | RequestFailed]:
        """Raises what a request raised, which is a bug."""
        return [self._done[index].result() if index in self._done else STOPPED for index in range(len(self._items))]


def _answer(future: asyncio.Future[Any]) -> Answer:
    if future.cancelled() or future.exception() is not None:
        return "failed"
    result = future.result()
    if not isinstance(result, RequestFailed):
        return "served"
    return "slow_down" if result.is_slow_down else "failed"
