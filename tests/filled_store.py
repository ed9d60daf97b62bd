"""Stores with pages in them, as a server would have left them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from pagefall.cache.namespace import Namespace
from pagefall.tiers.manifest import encode_manifest
from pagefall_storage import page_format
from pagefall_storage.protocol import Key, PutItem, StorageBackend, Stored

PAGE_BYTES = 1000

NAMESPACE = Namespace(
    model_digest=bytes(range(32)),
    architecture="LlamaForCausalLM/0123456789abcdef",
    rope="{}",
    compute_dtype="bfloat16",
    kv_dtype="bfloat16",
    page_size=16,
    layout="page-first/planes 30x3x(64+64)",
)


def namespace(**changes: Any) -> Namespace:
    return msgspec.structs.replace(NAMESPACE, **changes)


def page(of: Namespace, index: int) -> tuple[Key, bytes]:
    """The name and the value of a page of `PAGE_BYTES` payload."""
    key, digest = hashlib.sha256(str(index).encode()).digest(), of.digest()
    value = bytearray(page_format.HEADER_BYTES) + bytes([index % 256]) * PAGE_BYTES
    page_format.seal(memoryview(value), key=key, namespace=digest)
    return Key(f"{digest.hex()[:16]}/{key.hex()}"), bytes(value)


async def put(backend: StorageBackend, *values: tuple[str, bytes]) -> None:
    """Stores the values, replacing those that are there."""
    items = [PutItem(Key(key), memoryview(value)) for key, value in values]
    await backend.delete([item.key for item in items])
    assert await backend.put(items) == [Stored()] * len(items)


async def fill(backend: StorageBackend, of: Namespace, num_pages: int) -> Sequence[Key]:
    """A manifest and pages; returns the names of the pages."""
    pages = [page(of, index) for index in range(num_pages)]
    await put(backend, encode_manifest(of), *pages)
    return [key for key, _ in pages]
