"""Parts of an answer put together; and the parser of answers that call nothing."""

from __future__ import annotations

from collections.abc import Iterable

from pagefall.text.replies.parts import Content, Reasoning, ReplyParser, ReplyPart, ToolCallArguments


class ContentOnly:
    """All of it is for the reader."""

    def push(self, text: str) -> list[ReplyPart]:
        return [Content(text)] if text else []

    def finish(self) -> list[ReplyPart]:
        return []


def joined(parts: Iterable[ReplyPart]) -> list[ReplyPart]:
    """Neighbours of one kind as one."""
    result: list[ReplyPart] = []
    for part in parts:
        match (result[-1] if result else None), part:
            case Content(before), Content(text):
                result[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                result[-1] = Reasoning(before + text)
            case ToolCallArguments(index=one, text=before), ToolCallArguments(index=other, text=text) if one == other:
                result[-1] = ToolCallArguments(index=one, text=before + text)
            case _:
                result.append(part)
    return result


class FirstCallOnly:
    """Drops every call but the first, for requests that want no parallel calls."""

    def __init__(self, inner: ReplyParser) -> None:
        self._inner = inner

    def push(self, text: str) -> list[ReplyPart]:
        return [part for part in self._inner.push(text) if getattr(part, "index", 0) == 0]

    def finish(self) -> list[ReplyPart]:
        return [part for part in self._inner.finish() if getattr(part, "index", 0) == 0]
