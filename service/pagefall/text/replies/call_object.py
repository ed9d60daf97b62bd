"""A call written as a JSON object, `{"name": "f", "arguments": {...}}`, read while it arrives.

The call is announced as soon as its name is known and its arguments have begun; from there on the arguments pass
through as they are written. What cannot be a call any more before it was announced was never one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Set
from typing import Final, Literal

from pagefall.text.replies.json_scan import JsonScan, Verdict
from pagefall.text.replies.parts import ReplyPart, ToolCallArguments, ToolCallStart

_SPACE: Final = " \t\r\n"
_NAME_KEYS: Final = ("name", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters")

_MAX_NAME: Final = 256


def new_call_id() -> str:
    """Unique in the world, in OpenAI's form."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Calls:
    """Numbers the calls of one answer and names them. `names`: the only ones that can be called; None: any."""

    def __init__(self, new_id: Callable[[], str] = new_call_id, names: Set[str] | None = None) -> None:
        self.num = 0
        self._new_id = new_id
        self._names = names

    def may(self, name: str) -> bool:
        """Whether `name` can be that of a function."""
        if self._names is not None:
            return name in self._names
        return 0 < len(name) <= _MAX_NAME and not any(map(str.isspace, name)) and _is_unicode(name)

    def begin(self, name: str) -> ToolCallStart:
        start = ToolCallStart(index=self.num, call_id=self._new_id(), name=name)
        self.num += 1
        return start

    def whole(self, name: str, arguments: str) -> list[ReplyPart]:
        """A call of which all is known."""
        start = self.begin(name)
        return [start, ToolCallArguments(index=start.index, text=arguments)]


class CallObject:
    """Reads one object. `verdict` is "bad" also where it is a whole object that calls nothing."""

    def __init__(self, calls: Calls) -> None:
        self.verdict: Verdict = "more"
        self.start: ToolCallStart | None = None
        """Set once the call was announced."""
        self._calls = calls
        self._state: Literal["open", "first_key", "key", "in_key", "colon", "value", "comma"] = "open"
        self._scan = JsonScan()
        self._key = ""
        self._raw: list[str] = []
        self._name: str | None = None
        self._arguments: str | None = None
        self._told = False

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        """As `JsonScan.push`; what the text completes is added to `parts`."""
        at = start
        while at < len(text) and self.verdict == "more":
            if self._state == "in_key":
                at = self._read_key(text, at)
            elif self._state == "value":
                at = self._read_value(text, at, parts)
            elif text[at] in _SPACE:
                at += 1
            elif self._state in ("first_key", "key") and text[at] == '"':
                self._state, self._scan, self._raw = "in_key", JsonScan(), []
            elif self._read_mark(text[at], parts):
                at += 1
            else:
                self.verdict = "bad"
        return at

    def _read_mark(self, character: str, parts: list[ReplyPart]) -> bool:
        """Whether a brace, colon or comma may stand here, and what it means."""
        match self._state, character:
            case "open", "{":
                self._state = "first_key"
            case "colon", ":":
                self._state, self._scan, self._raw = "value", JsonScan(), []
            case "comma", ",":
                self._state = "key"
            case (("comma" | "first_key"), "}"):
                return self._end(parts)
            case _:
                return False
        return True

    def _read_key(self, text: str, at: int) -> int:
        end = self._scan.push(text, at)
        self._raw.append(text[at:end])
        if self._scan.verdict == "done":
            self._key = json.loads("".join(self._raw))
            self._state = "colon"
        elif self._scan.verdict == "bad":
            self.verdict = "bad"
        return end

    def _read_value(self, text: str, at: int, parts: list[ReplyPart]) -> int:
        end = self._scan.push(text, at)
        piece = text[at:end]
        is_arguments = self._key in _ARGUMENT_KEYS and self._arguments is None
        if is_arguments and self._told:
            self._tell(piece, parts)
        else:
            if is_arguments and not self._raw:
                piece = piece.lstrip(_SPACE)
            self._raw += [piece] if piece else []
            if is_arguments and self._name is not None and self._raw and self._raw[0].startswith("{"):
                self._announce("".join(self._raw), parts)
        if self._scan.verdict == "done":
            self._end_value(is_arguments=is_arguments)
        elif self._scan.verdict == "bad":
            self.verdict = "bad"
        return end

    def _end_value(self, *, is_arguments: bool) -> None:
        self._state = "comma"
        value = "".join(self._raw)
        if is_arguments:
            self._arguments = value
        elif self._key in _NAME_KEYS and self._name is None and value.lstrip().startswith('"'):
            name = json.loads(value)
            if self._calls.may(name):
                self._name = name
            else:
                self.verdict = "bad"

    def _announce(self, arguments: str, parts: list[ReplyPart]) -> None:
        assert self._name is not None
        self.start = self._calls.begin(self._name)
        parts.append(self.start)
        self._told = True
        self._tell(arguments, parts)

    def _tell(self, text: str, parts: list[ReplyPart]) -> None:
        if text:
            assert self.start is not None
            parts.append(ToolCallArguments(index=self.start.index, text=text))

    def _end(self, parts: list[ReplyPart]) -> bool:
        if self._name is None:
            return False
        if not self._told:
            arguments = _as_object(self._arguments)
            if arguments is None:
                return False
            self._announce(arguments, parts)
        self.verdict = "done"
        return True


def _as_object(arguments: str | None) -> str | None:
    """The object that was meant where it came late, as a string, or not at all; None where none was."""
    if arguments is None or arguments in ("null", '""'):
        return "{}"
    if arguments.startswith("{"):
        return arguments
    if arguments.startswith('"'):
        text = str(json.loads(arguments)).strip()
        scan = JsonScan()
        if text.startswith("{") and _is_unicode(text) and scan.push(text) == len(text) and scan.verdict == "done":
            return text
    return None


def _is_unicode(text: str) -> bool:
    """Not where an escape made half a surrogate pair, which no client could be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
