"""What an answer is made of, and the contract of those who take it apart while it is being written."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """Text that the model thinks aloud."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, kw_only=True):
    """Call number `index` (from 0, without gaps) of tool `name` begins; its arguments follow."""

    index: int
    call_id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, kw_only=True):
    """More of the JSON text of that call's arguments. Joined, it is an object, or the beginning of one where the answer
    ended within it or the model wrote no JSON: what was told cannot be taken back.
    """

    index: int
    text: str


ReplyPart: TypeAlias = Content | Reasoning | ToolCallStart | ToolCallArguments


class ReplyParser(Protocol):
    """Of one answer. Joined, what it returns does not depend on how the text was cut into pieces."""

    def push(self, text: str) -> list[ReplyPart]:
        """The parts that `text` completes. What may still become a marker is held back."""

    def finish(self) -> list[ReplyPart]:
        """The answer has ended: what was held back. A call whose arguments have not begun comes out as content."""
