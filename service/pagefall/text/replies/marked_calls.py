"""What dialects have in common that announce their calls with a marker, between which there may be text."""

from __future__ import annotations

from typing import Protocol

from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.content import joined
from pagefall.text.replies.held import find_first, safe_length
from pagefall.text.replies.json_scan import Verdict
from pagefall.text.replies.parts import Content, ReplyPart


class CallBlock(Protocol):
    """Reads what follows a marker. `is_told`: a call of it was announced, it cannot become content any more."""

    verdict: Verdict

    @property
    def is_told(self) -> bool: ...

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        """As `JsonScan.push`; the calls that the text completes are added to `parts`."""

    def finish(self, parts: list[ReplyPart]) -> None:
        """No more text will come: calls that are complete all the same are added to `parts`; then `is_told`."""


class MarkedCalls:
    """Content, and a block of calls behind each marker. White space between content and calls is nobody's."""

    def __init__(self, calls: Calls, markers: tuple[str, ...]) -> None:
        self._calls = calls
        self._markers = markers
        self._pending = ""
        self._gap = ""
        self._block: CallBlock | None = None
        self._raw: list[str] = []

    def block(self, marker: str) -> CallBlock:
        """A reader of what follows `marker`."""
        raise NotImplementedError

    def push(self, text: str) -> list[ReplyPart]:
        self._pending += text
        parts: list[ReplyPart] = []
        while self._pending and (self._read_text(parts) if self._block is None else self._read_block(parts)):
            pass
        return joined(parts)

    def finish(self) -> list[ReplyPart]:
        parts: list[ReplyPart] = []
        if self._block is not None:
            self._block.finish(parts)
            if not self._block.is_told:
                parts.append(Content(self._gap + "".join(self._raw)))
            self._block = None
        elif self._pending and not (self._calls.num and self._pending.isspace()):
            parts.append(Content(self._pending))
        self._pending = ""
        return joined(parts)

    def _read_text(self, parts: list[ReplyPart]) -> bool:
        """Whether there may be more to read."""
        found = find_first(self._pending, self._markers)
        end = safe_length(self._pending, self._markers) if found is None else len(self._pending[: found[0]].rstrip())
        if end:
            parts.append(Content(self._pending[:end]))
        if found is None:
            self._pending = self._pending[end:]
            return False
        at, marker = found
        self._gap, self._raw = self._pending[end:at], [marker]
        self._pending = self._pending[at + len(marker) :]
        self._block = self.block(marker)
        return True

    def _read_block(self, parts: list[ReplyPart]) -> bool:
        assert self._block is not None
        end = self._block.push(self._pending, 0, parts)
        self._raw.append(self._pending[:end])
        self._pending = self._pending[end:]
        if self._block.verdict == "more":
            return False
        if not self._block.is_told:
            parts.append(Content(self._gap + "".join(self._raw)))
        self._block = None
        return True
