"""Pages under our names that were made by something else, as whole as ours."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Literal, get_args

import xxhash

from pagefall_storage import page_format
from pagefall_storage.protocol import Key, PutItem, StorageBackend, Stored

Foreign = Literal["version", "other namespace"]
FOREIGN: Final[tuple[Foreign, ...]] = get_args(Foreign)

_VERSION_AT: Final = 8
_CHECKED_BYTES: Final = 104


async def put_foreign(store: StorageBackend, names: Sequence[Key], reason: Foreign, *, num_bytes: int) -> None:
    """Replaces the pages `names` by ones that are refused for that `reason`."""
    values = [_page(name, reason, num_bytes) for name in names]
    await store.delete(names)
    items = [PutItem(name, memoryview(value)) for name, value in zip(names, values, strict=True)]
    assert await store.put(items) == [Stored()] * len(names)


def _page(name: Key, reason: Foreign, num_bytes: int) -> bytearray:
    value = bytearray(num_bytes)
    namespace, key = name.split("/")
    page_format.seal(
        memoryview(value), key=bytes.fromhex(key), namespace=bytes.fromhex(namespace) + bytes(32 - len(namespace) // 2)
    )
    if reason == "version":
        struct.pack_into("<I", value, _VERSION_AT, page_format.FORMAT_VERSION + 1)
        value[_CHECKED_BYTES : _CHECKED_BYTES + 8] = xxhash.xxh3_64_digest(value[:_CHECKED_BYTES])
    return value
