"""Any backend behind a slower link: to see what a slower store would do, or to limit what a shared one is asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated

import msgspec

from pagefall_storage.identity import identity_of
from pagefall_storage.protocol import (
    GetOutcome,
    Hit,
    Key,
    PutItem,
    PutOutcome,
    StorageBackend,
    StoredValue,
    Usage,
)


class ThrottleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`{"throttle": {"bytes_per_second": 20e6, "latency_seconds": 0.2}}` in the extra configuration of any backend.

    `bytes_per_second` is one link's, shared by all reads and writes under way; None: no limit. `latency_seconds` passes
    before each operation.
    """

    bytes_per_second: Annotated[float, msgspec.Meta(gt=0)] | None = None
    latency_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Throttled:
    """A backend that answers no sooner than its link allows.

    A `get` returns when the bytes of its hits have passed, a `put` begins when its values have. Operations take turns
    on the link, value by value; one that is cancelled leaves it at once.
    """

    def __init__(
        self,
        inner: StorageBackend,
        config: ThrottleConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._config = config
        self._sleep = sleep
        self._clock = clock
        self._link = _Link(config.bytes_per_second, clock, sleep)

    @property
    def description(self) -> str:
        rate = self._config.bytes_per_second
        limit = "" if rate is None else f"{rate / 1e6:g} MB/s, "
        return f"{self._inner.description}, throttled to {limit}{self._config.latency_seconds:g} s latency"

    async def contains(self, keys: Sequence[Key]) -> int:
        await self._wait()
        return await self._inner.contains(keys)

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        await self._wait()
        asked_at = self._clock()
        outcomes = await self._inner.get(keys, into)
        hits = [buffer.nbytes for buffer, outcome in zip(into, outcomes, strict=True) if isinstance(outcome, Hit)]
        await self._link.carry(hits, since=asked_at)
        return outcomes

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        await self._wait()
        await self._link.carry([item.value.nbytes for item in items], since=self._clock())
        return await self._inner.put(items)

    async def delete(self, keys: Sequence[Key]) -> int:
        await self._wait()
        return await self._inner.delete(keys)

    async def scan(self) -> AsyncIterator[StoredValue]:
        await self._wait()
        async for value in self._inner.scan():
            yield value

    async def usage(self) -> Usage:
        await self._wait()
        return await self._inner.usage()

    async def identify(self) -> str | None:
        return await identity_of(self._inner)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _wait(self) -> None:
        if self._config.latency_seconds > 0:
            await self._sleep(self._config.latency_seconds)


class _Link:
    """What carries one value at a time, first come first served."""

    def __init__(
        self, bytes_per_second: float | None, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._free_at = clock()

    async def carry(self, sizes: Sequence[int], *, since: float) -> None:
        """Returns when values of `sizes` bytes have passed, which could not begin before `since`.

        Time is counted from the end of the value before, not from waking up after it: late wake-ups do not add up.
        """
        if self._bytes_per_second is None:
            return
        for num_bytes in sizes:
            async with self._turn:
                ends_at = max(self._free_at, since) + num_bytes / self._bytes_per_second
                try:
                    await self._sleep(max(0.0, ends_at - self._clock()))
                except asyncio.CancelledError:
                    self._free_at = min(ends_at, self._clock())
                    raise
                self._free_at = ends_at
