"""The tokens of a prompt's parts, for when they come again: a system prompt, or the turns of a conversation so far.

A byte-level tokenizer cuts a text at its special tokens and encodes what is between them each by itself. So a part
between two of them has the same tokens in every prompt, and a conversation need not be encoded anew with every turn.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Final

import numpy as np

from pagefall.messages import TokenIds
from pagefall.text.tokenizer import Tokenizer

_MAX_TOKENS: Final = 2_000_000
"""Of all parts kept: 8 MB."""

_LARGEST_PART: Final = 1 / 8
"""Of them: one that is larger is not kept, since all the others would have to go."""

_WORD_AT_AN_EDGE: Final = re.compile(r"\A\w|\w\Z")
"""With such a neighbour, a token that has to be a whole word is none."""

_PART_COST: Final = 64
"""Tokens that any part counts as beside its own, since it takes memory too."""


class EncodingCache:
    """Encodes text as the tokenizer does, the parts that are known without it. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_tokens: int = _MAX_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        cuts = _cuts(tokenizer) if tokenizer.is_byte_level else {}
        self._cut = re.compile("|".join(map(re.escape, cuts))) if cuts else None
        self._cut_ids = {cut: np.array([token_id], dtype=np.uint32) for cut, token_id in cuts.items()}
        self._lock = Lock()
        self._num_tokens = 0
        self._parts: OrderedDict[bytes, TokenIds] = OrderedDict()

    def encode(self, text: str, salt: str = "") -> TokenIds:
        """Token ids of `text`, without any that the tokenizer adds. `salt` keeps tenants apart: nobody
        learns by the time it takes whether another had the same part.
        """
        if self._cut is None:
            return self._tokenizer.encode(text, add_special_tokens=False)
        pieces: list[TokenIds] = []
        start = 0
        for match in self._cut.finditer(text):
            if start < match.start():
                pieces.append(self._encode_part(text[start : match.start()], salt))
            pieces.append(self._cut_ids[match.group()])
            start = match.end()
        if start < len(text) or not pieces:
            pieces.append(self._encode_part(text[start:], salt))
        return np.concatenate(pieces)

    def clear(self) -> None:
        with self._lock:
            self._parts.clear()
            self._num_tokens = 0

    def _encode_part(self, text: str, salt: str) -> TokenIds:
        digest = _digest(text, salt)
        with self._lock:
            known = self._parts.get(digest)
            if known is not None:
                self._parts.move_to_end(digest)
                return known
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        self._keep(digest, token_ids)
        return token_ids

    def _keep(self, digest: bytes, token_ids: TokenIds) -> None:
        size = len(token_ids) + _PART_COST
        if size > self._max_tokens * _LARGEST_PART:
            return
        with self._lock:
            if digest in self._parts:
                return  # another thread has been sooner
            self._parts[digest] = token_ids
            self._num_tokens += size
            while self._num_tokens > self._max_tokens:
                _, oldest = self._parts.popitem(last=False)
                self._num_tokens -= len(oldest) + _PART_COST


def _digest(text: str, salt: str) -> bytes:
    key = salt.encode("utf-8", "surrogatepass")
    part = hashlib.blake2b(len(key).to_bytes(8, "little") + key, digest_size=16, person=b"pagefall part")
    part.update(text.encode("utf-8", "surrogatepass"))
    return part.digest()


def _cuts(tokenizer: Tokenizer) -> dict[str, int]:
    """The special tokens that prompts are cut at: those the template writes, which are few. Some
    tokenizers have a thousand, and then looking for them takes longer than encoding.

    Only such as are found wherever they stand, and that no other added token can reach into.
    """
    if tokenizer.splits_special_tokens:
        return {}
    has_words = any(token.single_word for token in tokenizer.added_tokens.values())
    template = tokenizer.chat_template or ""
    cuts = {
        token.content: token_id
        for token_id, token in tokenizer.added_tokens.items()
        if token.special and (token.content in template or token_id in tokenizer.eos_token_ids)
        if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        if not (has_words and _WORD_AT_AN_EDGE.search(token.content))
    }
    spellings = [token.content for token in tokenizer.added_tokens.values()]
    return {cut: token_id for cut, token_id in cuts.items() if not _is_reached(cut, spellings)}


def _is_reached(cut: str, spellings: Iterable[str]) -> bool:
    """Whether `cut` may be read as a piece of another token, that begins before it or goes on behind it."""
    heads = tuple(cut[:size] for size in range(1, len(cut)))
    return any(cut in other or other.endswith(heads) for other in spellings if other != cut)
