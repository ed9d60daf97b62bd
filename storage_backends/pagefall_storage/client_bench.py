"""What the benchmarks of stores beside their plain clients have in common."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from pagefall_storage.protocol import Hit, Key, PutItem, StorageBackend, Stored

ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)
ItemT = TypeVar("ItemT")


def bench_keys(num_values: int) -> list[Key]:
    return [Key(f"bench/{i:064x}") for i in range(num_values)]


class StoreRuns:
    """Writes and reads `num_values` values through a store, with `num_calls` calls of `batch` values under way."""

    def __init__(
        self, backend: StorageBackend, *, num_values: int, value_bytes: int, batch: int, num_calls: int
    ) -> None:
        self._backend = backend
        self._keys = bench_keys(num_values)
        self._batches = [slice(first, first + batch) for first in range(0, num_values, batch)]
        self._values = [memoryview(bytearray(os.urandom(value_bytes))) for _ in self._keys]
        self._num_calls = num_calls

    async def write(self) -> None:
        async def put(batch: slice) -> None:
            pairs = zip(self._keys[batch], self._values[batch], strict=True)
            outcomes = await self._backend.put([PutItem(key, value) for key, value in pairs])
            assert all(isinstance(outcome, Stored) for outcome in outcomes), outcomes

        await take_turns(put, self._batches, self._num_calls)

    async def read(self) -> None:
        async def get(batch: slice) -> None:
            outcomes = await self._backend.get(self._keys[batch], self._values[batch])
            assert all(isinstance(outcome, Hit) for outcome in outcomes), outcomes

        await take_turns(get, self._batches, self._num_calls)

    async def clear(self) -> None:
        await self._backend.delete(self._keys)


async def take_turns(call: Callable[[ItemT], Awaitable[None]], items: Sequence[ItemT], num_at_once: int) -> None:
    """Calls with every item, `num_at_once` at a time."""
    waiting = iter(items)

    async def one_after_the_other() -> None:
        for item in waiting:
            await call(item)

    await asyncio.gather(*(one_after_the_other() for _ in range(num_at_once)))


def parse_arguments(program: str, description: str | None, config: type[ConfigT]) -> tuple[dict[str, object], ConfigT]:
    """The store's extra config, a JSON object, and `config`, each of whose fields is a flag with a whole number."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("extra_config", type=msgspec.json.decode, help="the store's extra config, a JSON object")
    for field in msgspec.structs.fields(config):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    arguments = vars(parser.parse_args())
    extra_config: dict[str, object] = arguments.pop("extra_config")
    return extra_config, msgspec.convert(arguments, config)
