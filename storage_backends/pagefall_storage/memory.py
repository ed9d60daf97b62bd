"""The store in this process's memory: the simplest correct backend, and the one to read first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from pagefall_storage.about import described
from pagefall_storage.config import ByteSize, parse_config
from pagefall_storage.errors import StorageConfigError
from pagefall_storage.keys import check_keys
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


class MemoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`max_bytes` of values are kept, those used last; None keeps all."""

    max_bytes: ByteSize | None = None


@described(config_type=MemoryConfig, capabilities={"evicts"})
async def open_memory(config: Mapping[str, object], *, value_bytes: int | None) -> MemoryBackend:
    """The factory of the backend `memory`. Raises `StorageConfigError`."""
    max_bytes = parse_config(config, MemoryConfig, where='storage backend "memory"').max_bytes
    if max_bytes is not None and value_bytes is not None and max_bytes < value_bytes:
        raise StorageConfigError(
            f'storage backend "memory": max_bytes: {max_bytes} is less than one value, {value_bytes} bytes'
        )
    return MemoryBackend(max_bytes=max_bytes)


class MemoryBackend:
    """A dictionary, least recently used first. No method waits for anything, so each happens at once, as a whole."""

    def __init__(self, *, max_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Key, bytes] = OrderedDict()
        self._num_bytes = 0
        self._num_evicted = 0

    @property
    def description(self) -> str:
        limit = "without limit" if self._max_bytes is None else f"up to {self._max_bytes} bytes"
        return f"memory of this process, {limit}"

    async def contains(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        return next((i for i, key in enumerate(keys) if key not in self._values), len(keys))

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        return [self._read(key, buffer) for key, buffer in zip(keys, into, strict=True)]

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        check_keys(item.key for item in items)
        return [self._write(item) for item in items]

    async def delete(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        return sum(self._forget(key) for key in keys)

    async def scan(self) -> AsyncIterator[StoredValue]:
        for key, value in list(self._values.items()):
            yield StoredValue(key, len(value), None)

    async def usage(self) -> Usage:
        return Usage(
            num_values=len(self._values),
            num_bytes=self._num_bytes,
            max_bytes=self._max_bytes,
            num_evicted=self._num_evicted,
        )

    async def aclose(self) -> None:
        self._values.clear()
        self._num_bytes = 0

    def _read(self, key: Key, buffer: memoryview) -> GetOutcome:
        value = self._values.get(key)
        if value is None:
            return Miss()
        if len(value) != buffer.nbytes:
            return Corrupt("short" if len(value) < buffer.nbytes else "long")
        buffer[:] = value
        self._values.move_to_end(key)
        return Hit()

    def _write(self, item: PutItem) -> PutOutcome:
        num_bytes = item.value.nbytes
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            return Failed("full", f"{num_bytes} bytes are more than max_bytes, {self._max_bytes}")
        self._forget(item.key)
        while self._max_bytes is not None and self._num_bytes + num_bytes > self._max_bytes:
            self._forget(next(iter(self._values)))
            self._num_evicted += 1
        self._values[item.key] = bytes(item.value)
        self._num_bytes += num_bytes
        return Stored()

    def _forget(self, key: Key) -> bool:
        value = self._values.pop(key, None)
        self._num_bytes -= len(value or b"")
        return value is not None
