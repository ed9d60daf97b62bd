"""A loop whose clock jumps to the next timer as soon as nothing else can run: seconds cost nothing, and are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "nothing will ever happen again"
            self.now += max(0.0, timeout)
        return events


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_virtually(function: Callable[[], Awaitable[T]]) -> T:
    """What `function` returns; its `anyio.current_time()` begins at 0."""
    return anyio.run(function, backend_options={"loop_factory": _VirtualLoop})
