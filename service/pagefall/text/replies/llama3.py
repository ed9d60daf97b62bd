"""Calls in the form of Llama 3: the answer is `{"name": "f", "parameters": {...}}`, several with semicolons between, or
such objects stand behind `<|python_tag|>`.
"""

from __future__ import annotations

from typing import Final

from pagefall.text.replies.call_list import CallList
from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.marked_calls import CallBlock, MarkedCalls
from pagefall.text.replies.parts import ReplyPart

PYTHON_TAG: Final = "<|python_tag|>"


class Llama3Parser(MarkedCalls):
    """`calls` knows the names of the tools: any other JSON is an answer like any other."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, (PYTHON_TAG,))
        self._begun = False

    def block(self, marker: str) -> CallBlock:
        return CallList(self._calls, separators=";")

    def _read_text(self, parts: list[ReplyPart]) -> bool:
        if not self._begun:
            head = self._pending.lstrip()
            if not head:
                return False
            self._begun = True
            if head.startswith("{"):
                self._gap, self._raw, self._pending = self._pending[: -len(head)], [], head
                self._block = self.block("")
                return True
        return super()._read_text(parts)
