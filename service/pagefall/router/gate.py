"""The one queue before all workers: so many requests are under way, so many wait, the others are refused, fairly.

Waiting clients take turns, so that one with a thousand requests does not hold up one with a single request. When all
places to wait are taken, the newest request of whoever has most of them makes room for one of a client that has fewer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal

from pagefall.errors import RequestError

RefusalReason = Literal["queue_full", "queue_timeout", "no_worker", "shutting_down"]

_RETRY_SECONDS: Final = 1
_NO_WORKER_RETRY_SECONDS: Final = 5


class RefusedError(RequestError):
    """503, before any worker was asked."""

    def __init__(self, reason: RefusalReason, message: str, *, retry_after_seconds: int = _RETRY_SECONDS) -> None:
        super().__init__(
            message,
            status=503,
            type="service_unavailable_error",
            code=reason,
            retry_after_seconds=retry_after_seconds,
        )
        self.reason: RefusalReason = reason


def no_worker(detail: str) -> RefusedError:
    return RefusedError(
        "no_worker",
        f"No worker can take the request now: {detail}. Try again, or see GET /router/workers.",
        retry_after_seconds=_NO_WORKER_RETRY_SECONDS,
    )


class Gate:
    """`is_open` says whether there is a worker at all; whoever knows of a change calls `pump`."""

    def __init__(
        self, *, max_concurrent: int, max_queued: int, timeout_seconds: float, is_open: Callable[[], bool]
    ) -> None:
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._timeout_seconds = timeout_seconds
        self._is_open = is_open
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By client; the client whose turn is next comes first."""
        self._refuses = False
        self.num_inside = 0
        self.num_waiting = 0

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """One of the places, given back at the end. Raises `RefusedError`."""
        await self._enter(client)
        try:
            yield
        finally:
            self.num_inside -= 1
            self.pump()

    def pump(self) -> None:
        """Lets in whoever may come in now, a client at a time."""
        while self._waiting and self._has_place():
            client = next(iter(self._waiting))
            self._waiting.move_to_end(client)
            future = self._take(client, 0)
            if not future.done():  # else its wait was cut short a moment ago
                self.num_inside += 1
                future.set_result(None)

    def close(self) -> None:
        """The router ends: who waits is refused, and who comes."""
        self._refuses = True
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(_shutting_down())
        self._waiting.clear()
        self.num_waiting = 0

    def _has_place(self) -> bool:
        return self.num_inside < self._max_concurrent and self._is_open()

    async def _enter(self, client: str) -> None:
        if self._refuses:
            raise _shutting_down()
        if not self._waiting and self._has_place():
            self.num_inside += 1
            return
        if self.num_waiting >= self._max_queued:
            self._make_room(client)
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await future
        except TimeoutError:
            self._leave(client, future)
            raise self._too_long() from None
        except asyncio.CancelledError:
            self._leave(client, future)
            raise

    def _leave(self, client: str, future: asyncio.Future[None]) -> None:
        """A wait that was cut short: out of the queue, or the place given back that it was just given."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self.num_inside -= 1
            self.pump()
        elif future in self._waiting.get(client, ()):
            self._take(client, self._waiting[client].index(future))

    def _take(self, client: str, index: int) -> asyncio.Future[None]:
        """Out of the queue."""
        futures = self._waiting[client]
        future = futures[index]
        del futures[index]
        self.num_waiting -= 1
        if not futures:
            del self._waiting[client]
        return future

    def _make_room(self, client: str) -> None:
        """Raises `RefusedError` where nobody has more waiting than `client` would have."""
        full = RefusedError("queue_full", f"The router's queue is full: {self.num_waiting} requests wait. Try again.")
        own = len(self._waiting.get(client, ()))
        greediest = max(self._waiting, key=lambda name: len(self._waiting[name]), default=client)
        if len(self._waiting.get(greediest, ())) <= own + 1:
            raise full
        newest = self._take(greediest, -1)
        if not newest.done():
            newest.set_exception(full)

    def _too_long(self) -> RefusedError:
        if not self._is_open():
            return no_worker(f"none was healthy for {self._timeout_seconds:g} seconds")
        return RefusedError(
            "queue_timeout", f"The request waited {self._timeout_seconds:g} seconds for its turn. Try again."
        )


def _shutting_down() -> RefusedError:
    return RefusedError("shutting_down", "The router is shutting down.")
