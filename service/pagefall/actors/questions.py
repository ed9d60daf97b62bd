"""Questions to another actor, answered later: numbered, and no more at a time than its mailbox has room for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

from pagefall.actors.refusals import unavailable
from pagefall.errors import RequestError

A = TypeVar("A")


class Questions(Generic[A]):
    """Of one kind. `what` names it, in the plural, for whoever is refused."""

    def __init__(self, *, limit: int, what: str) -> None:
        self._limit = limit
        self._what = what
        self._waiting: dict[int, asyncio.Future[A]] = {}
        self._ids = itertools.count()

    async def ask(self, send: Callable[[int], None]) -> A:
        """Calls `send` with the question's number, and returns its answer. Raises `RequestError` (503) when too many
        are under way. Cancelled, it was asked all the same.
        """
        if len(self._waiting) >= self._limit:
            raise unavailable(f"{self._limit} {self._what} are under way")
        number = next(self._ids)
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        send(number)
        return await answer

    def settle(self, number: int, answer: A) -> None:
        waiting = self._waiting.pop(number)
        if not waiting.done():  # whoever waited may have been cancelled
            waiting.set_result(answer)

    def fail(self, error: RequestError) -> None:
        """No answer will come any more, to any of them."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
