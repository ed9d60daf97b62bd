"""Pieces become words: the same words for the same seed and key, on every machine and in every version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from pagefall.bench.load.turns import Message, Piece, Turn
from pagefall.bench.prompts import WORDS

_WORDS: Final = np.array(WORDS, dtype=object)
_NUM_REMEMBERED: Final = 256


def words(seed: int, key: str, num_words: int) -> str:
    """`num_words` common words, drawn by `seed` and `key`. A longer text of the same key begins with the shorter."""
    drawn = hashlib.shake_128(f"{seed}/{key}".encode()).digest(2 * num_words)
    return " ".join(_WORDS[np.frombuffer(drawn, dtype="<u2") % len(WORDS)])


class Texts:
    """Prompts of one run, as long as `tokens_per_word`, the server's own count, makes them."""

    def __init__(self, *, seed: int, tokens_per_word: float) -> None:
        self._tokens_per_word = tokens_per_word
        self._words = lru_cache(maxsize=_NUM_REMEMBERED)(lambda key, num_words: words(seed, key, num_words))

    def of(self, piece: Piece) -> str:
        if piece.num_tokens == 0:
            return ""
        return self._words(piece.key, max(1, round(piece.num_tokens / self._tokens_per_word)))

    def prompt(self, turn: Turn, answers: Mapping[int, str]) -> str:
        """The prompt as one text. `answers`: real ones by the number of their turn; where they lack, words stand in.

        A trace's messages are no text: `ValueError`.
        """
        match turn.literal:
            case None:
                return " ".join(filter(None, (self._text(piece, answers) for piece in turn.pieces)))
            case str(text):
                return text
            case messages:
                raise ValueError(f"{len(messages)} messages are a chat, no text")

    def messages(self, turn: Turn, answers: Mapping[int, str]) -> tuple[Message, ...]:
        """The prompt as a chat: neighbours of one role are one message."""
        match turn.literal:
            case None:
                pass
            case str(text):
                return (Message(role="user", content=text),)
            case messages:
                return messages
        found: list[Message] = []
        for piece in turn.pieces:
            text = self._text(piece, answers)
            if found and found[-1].role == piece.role:
                found[-1] = Message(role=piece.role, content=" ".join(filter(None, (found[-1].content, text))))
            else:
                found.append(Message(role=piece.role, content=text))
        return tuple(found)

    def _text(self, piece: Piece, answers: Mapping[int, str]) -> str:
        answer = None if piece.answer_to is None else answers.get(piece.answer_to)
        return self.of(piece) if answer is None else answer
