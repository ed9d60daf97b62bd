"""A store in a dictionary that fails, hangs and lies as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext, suppress
from typing import Literal

from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    GetOutcome,
    Hit,
    Key,
    Miss,
    PutItem,
    PutOutcome,
    Stored,
    StoredValue,
    Usage,
)

Operation = Literal["contains", "get", "put", "delete", "scan", "usage", "identify"]


class FakeBackend:
    """`gates[operation]`: it waits there, `is_stubborn` even when it is cancelled. `errors[operation]` is raised.

    `get_failures` and `put_failures` are outcomes in place of the true ones. `calls` are all operations in the order
    of their begin, with their keys.
    """

    description = "a fake store"

    def __init__(self) -> None:
        self.values: dict[Key, bytes] = {}
        self.calls: list[tuple[Operation, list[Key]]] = []
        self.gates: dict[Operation, asyncio.Event] = {}
        self.errors: dict[Operation, Exception] = {}
        self.get_failures: dict[Key, Failed] = {}
        self.put_failures: list[Failed] = []
        """Each is the outcome of the next value put."""
        self.is_stubborn = False
        self.is_closed = False

    def num_calls(self, operation: Operation) -> int:
        return sum(name == operation for name, _ in self.calls)

    async def contains(self, keys: Sequence[Key]) -> int:
        await self._begin("contains", keys)
        return next((index for index, key in enumerate(keys) if key not in self.values), len(keys))

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        await self._begin("get", keys)
        return [self._get(key, buffer) for key, buffer in zip(keys, into, strict=True)]

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        await self._begin("put", [item.key for item in items])
        return [self._put(item) for item in items]

    async def delete(self, keys: Sequence[Key]) -> int:
        await self._begin("delete", keys)
        return sum(self.values.pop(key, None) is not None for key in keys)

    async def scan(self) -> AsyncIterator[StoredValue]:
        await self._begin("scan", [])
        for key, value in list(self.values.items()):
            yield StoredValue(key, len(value), None)

    async def usage(self) -> Usage:
        await self._begin("usage", [])
        return Usage(num_values=len(self.values), num_bytes=sum(map(len, self.values.values())), max_bytes=None)

    async def identify(self) -> str:
        await self._begin("identify", [])
        return "the fake one"

    async def aclose(self) -> None:
        self.is_closed = True

    async def _begin(self, operation: Operation, keys: Sequence[Key]) -> None:
        self.calls.append((operation, list(keys)))
        gate = self.gates.get(operation)
        while gate is not None and not gate.is_set():
            with suppress(asyncio.CancelledError) if self.is_stubborn else nullcontext():
                await gate.wait()
        if operation in self.errors:
            raise self.errors[operation]

    def _get(self, key: Key, into: memoryview) -> GetOutcome:
        if key in self.get_failures:
            return self.get_failures[key]
        value = self.values.get(key)
        if value is None:
            return Miss()
        if len(value) != len(into):
            return Corrupt("short" if len(value) < len(into) else "long")
        into[:] = value
        return Hit()

    def _put(self, item: PutItem) -> PutOutcome:
        if self.put_failures:
            return self.put_failures.pop(0)
        self.values.setdefault(item.key, bytes(item.value))
        return Stored()
