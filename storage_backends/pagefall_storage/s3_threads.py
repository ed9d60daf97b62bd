"""The threads of an S3 store: a few requests at once, of all operations in turns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pagefall_storage.operations import Stop
from pagefall_storage.s3_errors import RequestFailed
from pagefall_storage.s3_limiter import Answer, Limiter, Ticket
from pagefall_storage.s3_loan import RecalledError

logger = logging.getLogger(__name__)

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

STOPPED: Final = RequestFailed("error", "the store was closed meanwhile")


class RequestThreads:
    """Belongs to one event loop, which hears of the end of an operation alone: a thread that is done with a request
    takes the next one by itself.
    """

    def __init__(self, num_threads: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="pagefall-s3")
        self._lock = threading.Lock()  # of the two below, and of all batches
        self._limiter = Limiter(num_threads)
        self._turns: deque[_Batch[Any, Any]] = deque()  # those with requests not begun

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

        Requests under way then are left to end by themselves, after `settle_seconds` if they take longer; but those for
        whose items `recall` says that they use the caller's memory are waited for.
        """
        if not items or stop.is_set():
            return [STOPPED for _ in items]
        batch = _Batch(request, items)
        stop.on_set(batch.changed.set)
        with self._lock:
            self._turns.append(batch)
            self._begin_more()
        await batch.changed.wait()
        with self._lock:
            under_way = batch.stop()
            if batch in self._turns:
                self._turns.remove(batch)
        lent = [index for index in under_way if recall(items[index])]
        if settle_seconds:
            try:
                async with asyncio.timeout(settle_seconds):
                    await batch.wait_for(under_way)
            except TimeoutError:
                logger.warning("%d requests that were given up are still under way", len(batch.under_way))
        await batch.wait_for(lent)
        return batch.results()

    async def aclose(self) -> None:
        """Ends the threads: at once, or when a request that stalls has run into its timeout."""
        await asyncio.to_thread(self._pool.shutdown)

    def _begin_more(self) -> None:
        while self._turns and self._limiter.has_room():
            self._pool.submit(self._work, self._take_turn())

    def _take_turn(self) -> _Turn:
        batch = self._turns.popleft()
        index = batch.begin()
        if batch.has_more():
            self._turns.append(batch)
        return _Turn(batch, index, self._limiter.begin())

    def _work(self, turn: _Turn) -> None:
        """On a thread: this request, and then as many of those waiting as come."""
        while True:
            result = turn.batch.answer(turn.position)
            answer = _answer(result)
            with self._lock:
                turn.batch.end(turn.position, result)
                self._limiter.end(turn.ticket, answer)
                if answer == "slow_down":
                    logger.info("the store asks for fewer requests: at most %d at once now", self._limiter.limit)
                if not self._turns or not self._limiter.has_room():
                    return
                turn = self._take_turn()
                self._begin_more()  # for the limit may have grown


class _Batch(Generic[ItemT, ResultT]):
    """The requests of one operation. `changed` is set when all are done, and after `stop` when one is."""

    def __init__(self, request: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> None:
        self.changed = asyncio.Event()
        self.under_way: set[int] = set()
        self._request = request
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._num_begun = 0
        self._is_stopped = False
        self._results: dict[int, ResultT | RequestFailed | _Bug] = {}

    def begin(self) -> int:
        index = self._num_begun
        self._num_begun += 1
        self.under_way.add(index)
        return index

    def has_more(self) -> bool:
        return self._num_begun < len(self._items)

    def answer(self, index: int) -> ResultT | RequestFailed | _Bug:
        try:
            return self._request(self._items[index])
        except RequestFailed as failed:
            return failed
        except RecalledError:
            return STOPPED
        except Exception as error:
            if self._is_stopped:
                logger.exception("a bug in a request that was given up")
            return _Bug(error)

    def end(self, index: int, result: ResultT | RequestFailed | _Bug) -> None:
        self.under_way.remove(index)
        self._results[index] = result
        if self._is_stopped or len(self._results) == len(self._items):
            self._loop.call_soon_threadsafe(self.changed.set)

    def stop(self) -> list[int]:
        """Which are under way."""
        self._is_stopped = True
        return list(self.under_way)

    async def wait_for(self, indices: Collection[int]) -> None:
        """Until none of them is under way. After `stop`."""
        while not self.under_way.isdisjoint(indices):
            self.changed.clear()
            if not self.under_way.isdisjoint(indices):
                await self.changed.wait()

    def results(self) -> list[ResultT | RequestFailed]:
        """Raises what a request raised, which is a bug."""
        results: list[ResultT | RequestFailed] = []
        for index in range(len(self._items)):
            result = self._results.get(index, STOPPED)
            if isinstance(result, _Bug):
                raise result.error
            results.append(result)
        return results


class _Bug(NamedTuple):
    error: Exception


class _Turn(NamedTuple):
    batch: _Batch[Any, Any]
    position: int
    ticket: Ticket


def _answer(result: object) -> Answer:
    match result:
        case RequestFailed(is_slow_down=True):
            return "slow_down"
        case RequestFailed() | _Bug():
            return "failed"
        case _:
            return "served"
