"""Two ways to run tasks together. What a task raises comes out as it is, not inside an `ExceptionGroup`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
from starlette.types import Receive

from pagefall.errors import first_failure


async def run_until_disconnect(receive: Receive, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `work`, cancelling it when the client hangs up; the request's body must have been read."""

    async def watch(scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch, group.cancel_scope)
            await work()
            group.cancel_scope.cancel()
    except ExceptionGroup as failures:
        raise first_failure(failures) from None


async def run_all(work: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Runs all of `work` at once; the first failure cancels the others."""
    try:
        async with anyio.create_task_group() as group:
            for item in work:
                group.start_soon(item)
    except ExceptionGroup as failures:
        raise first_failure(failures) from None
