"""Token ids become text while they arrive.

The law of this file: however the ids are cut into pushes, the pushes and the flush join to the text that decoding
all of them at once would give, and the cost of a token does not depend on how many came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set

from pagefall.messages import TokenIds
from pagefall.text.tokenizer import Tokenizer, byte_fallback


class IncrementalDetokenizer:
    """Decodes one answer. Holds back what later tokens could still change: incomplete characters, and with
    sentencepiece's byte fallback a run of byte tokens (one wrong byte makes the whole run U+FFFD).

    The text is the answer's own: bytes that the prompt left open are not completed. What the prompt decides is whether
    the answer begins the text: with a sentencepiece vocabulary ` word` loses its space at the start of a text, and
    keeps it behind a prompt.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] | TokenIds = (),
        kept_special_token_ids: Set[int] = frozenset(),
    ) -> None:
        """Special tokens leave no text, but for those in `kept_special_token_ids`, which are spelled out."""
        hidden = tokenizer.special_token_ids - kept_special_token_ids
        self._decode = (
            _ByteLevel(tokenizer, hidden) if tokenizer.is_byte_level else _Windowed(tokenizer, hidden, prompt_token_ids)
        )

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with `token_ids`."""
        return self._decode.push(token_ids)

    def flush(self) -> str:
        """The rest, once no more tokens will come; an incomplete character is U+FFFD."""
        return self._decode.flush()


class _ByteLevel:
    """The tokens' bytes, through Python's incremental UTF-8 decoder."""

    def __init__(self, tokenizer: Tokenizer, hidden: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        shown = (token_id for token_id in token_ids if token_id not in self._hidden)
        return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, shown)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Windowed:
    """The text of the tokens not yet sent, decoded behind the last one that was: what decoders do to a token depends
    on whether another stands before it, not on which.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Set[int], prompt_token_ids: Sequence[int] | TokenIds) -> None:
        self._tokenizer = tokenizer
        self._kept = tokenizer.special_token_ids - hidden
        self._pending: list[int] = []
        self._anchor: list[int] = []
        self._anchor_length = 0
        for token_id in reversed(prompt_token_ids):
            if self._is_text(int(token_id)) and not self._is_byte(int(token_id)):
                self._set_anchor(int(token_id))
                break

    def push(self, token_ids: Sequence[int]) -> str:
        text = ""
        settled = 0
        for token_id in token_ids:
            if token_id in self._kept:
                # Spelled by itself: decoders have no way to show one special token and not another.
                text += self._take(len(self._pending)) + (self._tokenizer.token(token_id) or "")
                settled = 0
            elif self._is_text(token_id):
                self._pending.append(token_id)
                if not self._is_byte(token_id):
                    settled = len(self._pending)
        return text + self._take(settled)

    def flush(self) -> str:
        return self._take(len(self._pending))

    def _take(self, num_tokens: int) -> str:
        if num_tokens == 0:
            return ""
        taken, self._pending = self._pending[:num_tokens], self._pending[num_tokens:]
        text = self._tokenizer.decode([*self._anchor, *taken])[self._anchor_length :]
        self._set_anchor(taken[-1])
        return text

    def _set_anchor(self, token_id: int) -> None:
        self._anchor = [token_id]
        self._anchor_length = len(self._tokenizer.decode(self._anchor))

    def _is_text(self, token_id: int) -> bool:
        return token_id not in self._tokenizer.special_token_ids and self._tokenizer.token(token_id) is not None

    def _is_byte(self, token_id: int) -> bool:
        spelling = self._tokenizer.token(token_id)
        return spelling is not None and byte_fallback(spelling) is not None
