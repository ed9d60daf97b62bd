"""How late an event loop wakes up: what everybody has to wait for who shares it with transfers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

_SLEEP_SECONDS: Final = 0.001


@asynccontextmanager
async def watched_loop(lags: list[float]) -> AsyncIterator[None]:
    """Until the block ends, someone asks the loop for a millisecond of sleep over and over. How much longer each one
    took, in seconds, is added to `lags`.
    """

    async def watch() -> None:
        while True:
            asked_at = time.perf_counter()
            await asyncio.sleep(_SLEEP_SECONDS)
            lags.append(time.perf_counter() - asked_at - _SLEEP_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
