"""What must be equal for one replica's pages to mean the same to another: everything that changes their bytes."""

from __future__ import annotations

import hashlib

import msgspec

from pagefall.cache.keys import framed


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """The settings behind a page's bytes. Two replicas share pages only when every field is equal.

    `model_digest` is a digest of the weights, not of their name. `rope` is the canonical text of the rope settings
    (theta, scaling and so on). `kv_scales_digest` is empty where the KV dtype has no scales. `component` is the kind
    of state a page holds (`full`, `sliding` or `state`).
    """

    model_digest: bytes
    architecture: str
    rope: str
    compute_dtype: str
    kv_dtype: str
    page_size: int
    layout: str
    kv_scales_digest: bytes = b""
    component: str = "full"
    tp_rank: int = 0
    tp_size: int = 1
    format_version: int = 1

    def digest(self) -> bytes:
        """SHA-256 over every field's name and value, length-framed; 32 bytes, the `namespace` of `root_key`."""
        fields: list[bytes] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            fields += [name.encode(), value if isinstance(value, bytes) else str(value).encode()]
        return hashlib.sha256(framed(fields)).digest()

    def differences(self, other: Namespace) -> tuple[str, ...]:
        """Names of the fields in which the two differ, in the order of their definition."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name) != getattr(other, name))
