"""Text that a model thinks aloud, between `<think>` and `</think>`, apart from its answer."""

from __future__ import annotations

from typing import Final, Literal

from pagefall.text.replies.content import joined
from pagefall.text.replies.held import safe_length
from pagefall.text.replies.parts import Reasoning, ReplyParser, ReplyPart

BEGIN: Final = "<think>"
END: Final = "</think>"


def is_thinking(prompt_tail: str) -> bool:
    """Whether the template has opened the thought already, as those do whose model always thinks."""
    return prompt_tail.rfind(BEGIN) > prompt_tail.rfind(END)


class ThinkingParser:
    """What follows the thought is `inner`'s. White space around the thought is nobody's."""

    def __init__(self, inner: ReplyParser, *, begins: Literal["thinking", "open"]) -> None:
        """`thinking`: the answer begins within the thought, with or without a tag. `open`: its own tag decides."""
        self._inner = inner
        self._state: Literal["tag_or_thought", "tag_or_answer", "thought", "gap", "answer"] = (
            "tag_or_thought" if begins == "thinking" else "tag_or_answer"
        )
        self._pending = ""
        self._is_blank = True
        """Whether nothing of the thought was told yet."""

    def push(self, text: str) -> list[ReplyPart]:
        self._pending += text
        parts: list[ReplyPart] = []
        while self._pending and self._read(parts):
            pass
        return joined(parts)

    def finish(self) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        held = self._pending.rstrip()
        if self._state in ("tag_or_thought", "thought"):
            if held:
                parts.append(Reasoning(held))
        elif self._state == "tag_or_answer":
            parts += self._inner.push(self._pending)
        self._pending = ""
        return joined([*parts, *self._inner.finish()])

    def _read(self, parts: list[ReplyPart]) -> bool:
        """Whether there may be more to read."""
        match self._state:
            case "tag_or_thought" | "tag_or_answer":
                return self._read_head(parts)
            case "thought":
                return self._read_thought(parts)
            case "gap":
                self._pending = self._pending.lstrip("\r\n")
                if self._pending:
                    self._state = "answer"
                return bool(self._pending)
            case "answer":
                parts += self._inner.push(self._pending)
                self._pending = ""
                return False

    def _read_head(self, parts: list[ReplyPart]) -> bool:
        head = self._pending.lstrip()
        if not head or (len(head) < len(BEGIN) and BEGIN.startswith(head)):
            return False
        if head.startswith(BEGIN):
            self._state, self._pending = "thought", head[len(BEGIN) :].lstrip()
        elif self._state == "tag_or_thought":
            self._state, self._pending = "thought", head
        else:
            self._state = "answer"
        return True

    def _read_thought(self, parts: list[ReplyPart]) -> bool:
        if self._is_blank:
            self._pending = self._pending.lstrip()
        at = self._pending.find(END)
        end = safe_length(self._pending, (END,)) if at < 0 else len(self._pending[:at].rstrip())
        if end:
            self._is_blank = False
            parts.append(Reasoning(self._pending[:end]))
        if at < 0:
            self._pending = self._pending[end:]
            return False
        self._state, self._pending = "gap", self._pending[at + len(END) :]
        return True
