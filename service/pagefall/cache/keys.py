"""Content keys: the same tokens after the same prefix, under the same namespace, have the same key everywhere.

key[i] = SHA-256(key[i - 1] || token ids of page i, little-endian u32)
key[-1] = root_key(namespace, cache_salt, lora_id)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pagefall.messages import TokenIds

TOKEN_BYTES = 4

_SHA256 = hashlib.sha256()


def framed(fields: Iterable[bytes]) -> bytes:
    """Each field behind its length (little-endian u64), so that different lists never frame to the same bytes."""
    return b"".join(len(field).to_bytes(8, "little") + field for field in fields)


def token_bytes(token_ids: TokenIds) -> bytes:
    """`token_ids` (`[num_tokens]`) as little-endian u32, `4 * num_tokens` bytes."""
    return token_ids.astype("<u4", copy=False).tobytes()


def root_key(namespace: bytes, cache_salt: str, lora_id: str = "") -> bytes:
    """The key before a sequence's first page, 32 bytes. `namespace` is `Namespace.digest()`."""
    # JSON may bring a lone surrogate; it names a tenant as well as any other text.
    texts = [text.encode("utf-8", "surrogatepass") for text in (cache_salt, lora_id)]
    return hashlib.sha256(framed([namespace, *texts])).digest()


def page_keys(root: bytes, token_ids: TokenIds, page_size: int) -> list[bytes]:
    """One 32-byte key per complete page of `token_ids`; a page cut short at the end has none."""
    return page_keys_of_bytes(root, token_bytes(token_ids), page_size * TOKEN_BYTES)


def page_keys_of_bytes(before: bytes, tokens: bytes, page_bytes: int) -> list[bytes]:
    """The same for `token_bytes` behind the page (or root) whose key is `before`; `page_bytes` of them are a page."""
    keys = []
    key = before
    for start in range(0, len(tokens) // page_bytes * page_bytes, page_bytes):
        digest = _SHA256.copy()  # half the time of a new one
        digest.update(key + tokens[start : start + page_bytes])
        key = digest.digest()
        keys.append(key)
    return keys
