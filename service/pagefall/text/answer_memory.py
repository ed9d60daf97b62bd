"""The tokens of past answers, for when they come back as history.

A model may sample other tokens for a text than the tokenizer makes of it. Encoded anew, such an answer leaves the
cached path at the first token that differs, and all that follows it is computed again. So the sampled tokens are
remembered by the whole text before and in the answer, and used where a prompt has exactly this text. The prompt's text
is the same either way: only how it is cut into tokens is what the model wrote.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Set
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from pagefall.messages import TokenIds
from pagefall.text.encoding_cache import EncodingCache
from pagefall.text.tokenizer import Tokenizer

_MAX_TOKENS: Final = 2_000_000
"""Of all answers remembered: 8 MB, and as much again for their text."""

_TOKEN_COST: Final = 32
"""Tokens that any answer counts as beside its own, since it takes memory too."""


class PromptKey:
    """A prompt's text, as what an answer to it is remembered by. Never changes: several answers may share it."""

    def __init__(self, text_hash: hashlib.blake2b) -> None:
        """`text_hash` is the key's own from now on."""
        self._hash = text_hash

    @classmethod
    def of_nothing(cls, salt: str, epoch: int) -> PromptKey:
        """`salt` keeps tenants apart, as it does their pages; `epoch` what is on either side of a `clear`."""
        empty = hashlib.blake2b(digest_size=20, person=b"pagefall answer", salt=epoch.to_bytes(16, "little"))
        return cls(empty).followed_by(salt + "\0")

    def followed_by(self, text: str) -> PromptKey:
        """The key of this prompt's text and `text` behind it."""
        extended = self._hash.copy()
        extended.update(text.encode("utf-8", "surrogatepass"))
        return PromptKey(extended)

    def digest(self) -> bytes:
        return self._hash.digest()


class EncodedPrompt(NamedTuple):
    """`key` None: an answer to it cannot be remembered."""

    token_ids: TokenIds
    key: PromptKey | None


class _Answer(NamedTuple):
    text: str
    token_ids: TokenIds


class AnswerMemory:
    """Remembers the last answers. May be used from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encodings: EncodingCache,
        end_token_ids: Set[int],
        *,
        max_tokens: int = _MAX_TOKENS,
    ) -> None:
        """`end_token_ids` end an answer: that is where in a prompt answers are looked for. What is between them is
        encoded by `encodings`, which has the same `tokenizer`.
        """
        ends = {tokenizer.token(token_id) for token_id in end_token_ids & tokenizer.special_token_ids}
        spellings = "|".join(re.escape(end) for end in sorted(ends - {None}, key=str) if end)
        # Where text is not the sum of its tokens' bytes, it cannot be cut at an answer's ends.
        self._end = re.compile(spellings) if spellings and tokenizer.is_byte_level else None
        self._tokenizer = tokenizer
        self._encodings = encodings
        self._max_tokens = max_tokens
        self._lock = Lock()
        self._num_tokens = 0
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()
        self._epoch = 0

    def encode(self, text: str, salt: str = "") -> EncodedPrompt:
        """The tokens of a rendered prompt: those of each answer in it as they were sampled, if that is remembered."""
        if self._end is None:
            return EncodedPrompt(self._encodings.encode(text, salt), None)
        key = PromptKey.of_nothing(salt, self._epoch)
        pieces: list[TokenIds] = []
        read = written = 0
        for match in self._end.finditer(text):
            key = key.followed_by(text[read : match.start()])
            read = match.start()
            answer = self._recall(key.digest())
            if answer is not None and text.endswith(answer.text, written, read):
                pieces.append(self._encodings.encode(text[written : read - len(answer.text)], salt))
                pieces.append(answer.token_ids)
                written = read
        key = key.followed_by(text[read:])
        pieces.append(self._encodings.encode(text[written:], salt))
        return EncodedPrompt(np.concatenate(pieces) if len(pieces) > 1 else pieces[0], key)

    def remember(self, key: PromptKey, token_ids: TokenIds) -> None:
        """The answer to the prompt of `key`, without the token that ended it."""
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        size = len(token_ids) + _TOKEN_COST
        if not text or size > self._max_tokens or not self._is_text_of(text, token_ids):
            return
        digest = key.followed_by(text).digest()
        with self._lock:
            self._forget(digest)
            self._answers[digest] = _Answer(text, token_ids)
            self._num_tokens += size
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._answers)))

    def clear(self) -> None:
        """Forgets all answers, and those to come of prompts that were encoded before."""
        with self._lock:
            self._epoch += 1
            self._answers.clear()
            self._num_tokens = 0

    def _recall(self, digest: bytes) -> _Answer | None:
        with self._lock:
            if digest not in self._answers:
                return None
            self._answers.move_to_end(digest)
            return self._answers[digest]

    def _forget(self, digest: bytes) -> None:
        if (known := self._answers.pop(digest, None)) is not None:
            self._num_tokens -= len(known.token_ids) + _TOKEN_COST

    def _is_text_of(self, text: str, token_ids: TokenIds) -> bool:
        """Not where characters were cut: then the text has others in their place."""
        return text.encode() == b"".join(self._tokenizer.token_bytes(int(token_id)) for token_id in token_ids)
