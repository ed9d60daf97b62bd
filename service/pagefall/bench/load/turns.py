"""What a workload sends, before it is text: pieces make up a prompt, turns a session."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Role = Literal["system", "user", "assistant"]

Preparation = Literal["settle", "restart"]
"""What happens before a turn: wait until nothing moves in the server, or that and a restart."""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a prompt. Pieces of one `key` are the same text, others share no head worth caching.

    `num_tokens` is what is aimed at; the server's own count is in the sample. `answer_to` is the number of the turn,
    in its session, whose real answer stands here if real answers are asked for; None: always words of our own.
    """

    key: str
    num_tokens: int
    role: Role = "user"
    answer_to: int | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat. `role`: of a piece, or whatever a trace has there."""

    role: str
    content: str


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `part` is the line of the report that it counts in, none of its own if it is not measured.

    `pieces` are the whole prompt, all that was said before included. With `literal` the prompt is that, word for word,
    and `pieces` only say which head it shares with others. `answer_key`: the key that the answer has as a piece of a
    later prompt. `think_seconds` pass between the answer before and this request.
    """

    part: str
    pieces: tuple[Piece, ...]
    output_tokens: int
    answer_key: str | None = None
    literal: str | tuple[Message, ...] | None = None
    think_seconds: float = 0.0
    preparation: Preparation | None = None
    is_measured: bool = True

    @property
    def num_tokens(self) -> int:
        return sum(piece.num_tokens for piece in self.pieces)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of which each waits for the answer to the one before. `at_seconds`: when a trace has the first."""

    turns: tuple[Turn, ...]
    at_seconds: float | None = None


LITERAL_BLOCK_CHARS: Final = 64
_CHARS_PER_TOKEN: Final = 4


def literal_pieces(text: str) -> tuple[Piece, ...]:
    """`text` in blocks, for the question which head it shares with others: to 64 characters, about 16 tokens."""
    blocks = [text[start : start + LITERAL_BLOCK_CHARS] for start in range(0, len(text), LITERAL_BLOCK_CHARS)]
    return tuple(Piece(key=block, num_tokens=max(1, len(block) // _CHARS_PER_TOKEN)) for block in blocks)
