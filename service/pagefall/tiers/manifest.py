"""What a namespace's digest stands for, kept in the store beside its pages: an ordinary value, `<namespace>/namespace`.

No page is ever read through it. It is there for people: `pagefall cache` shows what a store holds, and what differs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.cache.namespace import Namespace
from pagefall_storage import page_format
from pagefall_storage.protocol import Corrupt, Hit, Key

NAMESPACE_DIGITS: Final = 16
"""Hex digits of a namespace's digest that begin the names of its values."""

MANIFEST_NAME: Final = "namespace"


def manifest_key(namespace: bytes) -> Key:
    """The name of the manifest of the namespace with this digest (32 bytes)."""
    return Key(f"{namespace.hex()[:NAMESPACE_DIGITS]}/{MANIFEST_NAME}")


def encode_manifest(namespace: Namespace) -> tuple[Key, bytes]:
    """Its name and its value: the fields as JSON (bytes in base64), sealed like a page whose key is the digest."""
    digest = namespace.digest()
    value = bytearray(page_format.HEADER_BYTES) + msgspec.json.encode(namespace)
    page_format.seal(memoryview(value), key=digest, namespace=digest)
    return manifest_key(digest), bytes(value)


def decode_manifest(value: memoryview) -> Namespace | Corrupt:
    """The namespace that `value` describes, whole and undamaged. Never raises.

    Of `Corrupt`'s reasons, "not a namespace" is one of its own; a field that this version does not know makes the
    digest another, which is "other namespace".
    """
    try:
        namespace = msgspec.json.decode(value[page_format.HEADER_BYTES :], type=Namespace)
    except msgspec.DecodeError:
        return Corrupt("not a namespace")
    digest = namespace.digest()
    match page_format.verify(value, key=digest, namespace=digest):
        case Hit():
            return namespace
        case Corrupt() as corrupt:
            return corrupt
