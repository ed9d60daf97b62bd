"""Calls in the form of Hermes and Qwen: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, one or several."""

from __future__ import annotations

from typing import Final

from pagefall.text.replies.call_object import CallObject, Calls
from pagefall.text.replies.json_scan import Verdict
from pagefall.text.replies.marked_calls import CallBlock, MarkedCalls
from pagefall.text.replies.parts import Content, ReplyPart

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"


class HermesParser(MarkedCalls):
    """The closing tag may be missing: small models forget it."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, (BEGIN,))

    def block(self, marker: str) -> CallBlock:
        return _Block(self._calls)


class _Block:
    def __init__(self, calls: Calls) -> None:
        self.verdict: Verdict = "more"
        self._call = CallObject(calls)
        self._closing = ""

    @property
    def is_told(self) -> bool:
        return self._call.start is not None

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        at = start
        if self._call.verdict == "more":
            at = self._call.push(text, at, parts)
        if self._call.verdict == "bad":
            self.verdict = "bad"
        while self._call.verdict == "done" and self.verdict == "more" and at < len(text):
            if not self._closing and text[at].isspace():
                at += 1
            elif END.startswith(self._closing + text[at]):
                self._closing += text[at]
                at += 1
                if self._closing == END:
                    self.verdict = "done"
            else:
                self.verdict = "done"  # text goes on without the tag
                parts += [Content(self._closing)] if self._closing else []
        return at

    def finish(self, parts: list[ReplyPart]) -> None:
        """A call that was announced stays as it is, a beginning of it or the whole."""
