"""The value of one page: a fixed header of 128 bytes, then the raw payload, all layers together (page-first).

    offset  bytes
         0      8  magic, b"PAGEFALL"
         8      4  format version, little-endian u32
        12      4  zero
        16     32  key of the page (SHA-256, see `pagefall.cache.keys`)
        48     32  namespace: digest of everything that changes a page's bytes
        80      8  payload length in bytes, little-endian u64
        88     16  xxh3-128 of the payload, big-endian as xxhash's `digest()` gives it
       104      8  xxh3-64 of bytes 0 to 103, big-endian: a damaged header is told from a foreign one
       112     16  zero, and checked to be

The header is exactly `HEADER_BYTES` long so that a pool can keep it in front of each page in memory: a page is then
written and read in one piece, without a copy.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from pagefall_storage.protocol import Corrupt, Hit

HEADER_BYTES: Final = 128
FORMAT_VERSION: Final = 1
MAGIC: Final = b"PAGEFALL"

_HEADER: Final = struct.Struct("<8sI4x32s32sQ16s")
_CHECKED_BYTES: Final = 104
_DIGEST_BYTES: Final = 32
_ZEROS: Final = bytes(HEADER_BYTES - _CHECKED_BYTES - 8)


def seal(value: memoryview, *, key: bytes, namespace: bytes) -> None:
    """Writes the header of `value`, whose payload (`value[HEADER_BYTES:]`) is in place already.

    `value` is a writable buffer of bytes; `key` and `namespace` have 32 bytes. Raises `ValueError` otherwise.
    """
    if len(key) != _DIGEST_BYTES or len(namespace) != _DIGEST_BYTES:
        raise ValueError(f"key and namespace have {_DIGEST_BYTES} bytes, not {len(key)} and {len(namespace)}")
    payload = value[HEADER_BYTES:]
    checksum = xxhash.xxh3_128_digest(payload)
    _HEADER.pack_into(value, 0, MAGIC, FORMAT_VERSION, key, namespace, len(payload), checksum)
    value[_CHECKED_BYTES : _CHECKED_BYTES + 8] = xxhash.xxh3_64_digest(value[:_CHECKED_BYTES])
    value[_CHECKED_BYTES + 8 : HEADER_BYTES] = _ZEROS


def verify(value: memoryview, *, key: bytes, namespace: bytes) -> Hit | Corrupt:
    """Whether `value` is the page `key` of `namespace`, complete and undamaged. Never raises; changes nothing.

    Reasons of `Corrupt`: "short", "bad magic", "version", "damaged header", "other key", "other namespace", "length",
    "checksum".
    """
    if len(value) < HEADER_BYTES:
        return Corrupt("short")
    magic, version, its_key, its_namespace, num_bytes, checksum = _HEADER.unpack_from(value)
    if magic != MAGIC:
        return Corrupt("bad magic")
    checked_and_rest = xxhash.xxh3_64_digest(value[:_CHECKED_BYTES]) + _ZEROS
    if value[_CHECKED_BYTES:HEADER_BYTES] != checked_and_rest:
        return Corrupt("damaged header")
    if version != FORMAT_VERSION:
        return Corrupt("version")
    if its_namespace != namespace:
        return Corrupt("other namespace")
    if its_key != key:
        return Corrupt("other key")
    if num_bytes != len(value) - HEADER_BYTES:
        return Corrupt("length")
    if xxhash.xxh3_128_digest(value[HEADER_BYTES:]) != checksum:
        return Corrupt("checksum")
    return Hit()
