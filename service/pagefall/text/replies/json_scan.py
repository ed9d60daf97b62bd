"""Where a JSON value ends, found while its text is still arriving.

Strict JSON (RFC 8259), a character at a time: time is linear in the text, however it is cut.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Verdict = Literal["more", "done", "bad"]

_MAX_DEPTH: Final = 200
"""Deeper nesting is no JSON here: neither clients nor `json` would read it."""

_MAX_SCALAR: Final = 1000
"""Characters of a number."""

_SPACE: Final = " \t\r\n"
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_LITERALS: Final = ("true", "false", "null")
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NUMBER_HEAD: Final = re.compile(r"-?(0|[1-9]\d*)?(?:(?<=\d)\.\d*)?(?:(?<=\d)[eE][+-]?\d*)?", re.ASCII)
_SCALAR_CHARACTERS: Final = frozenset("-+.0123456789eEtrufalsn")


class JsonScan:
    """Reads one value. A number or a literal at the top is only done where something else follows it."""

    def __init__(self) -> None:
        self.verdict: Verdict = "more"
        self._stack: list[str] = []
        self._want: Literal["value", "value_or_end", "key", "key_or_end", "colon", "comma_or_end"] = "value"
        self._string: Literal["no", "plain", "escape", "hex"] = "no"
        self._is_key = False
        self._num_hex = 0
        self._scalar = ""

    def push(self, text: str, start: int = 0) -> int:
        """Reads on from `text[start]`. Returns how far the value goes: all of `text` while it wants more, the index
        behind its last character once it is done, the index of the first wrong character where it is bad.
        """
        at = start
        while at < len(text) and self.verdict == "more":
            if self._string == "plain" and (plain := _PLAIN.match(text, at)):
                at = plain.end()
                continue
            if self._scalar and text[at] not in _SCALAR_CHARACTERS:
                self._end_scalar()
                continue  # the character itself is read next, or is not part of the value
            if not self._read(text[at]):
                self.verdict = "bad"
                break
            at += 1
        return at

    def _read(self, character: str) -> bool:
        """Whether the character may stand here."""
        if self._string != "no":
            return self._read_in_string(character)
        if self._scalar:
            return self._read_in_scalar(character)
        if character in _SPACE:
            return True
        match self._want:
            case "colon":
                self._want = "value"
                return character == ":"
            case "comma_or_end":
                if character == ",":
                    self._want = "key" if self._stack[-1] == "{" else "value"
                    return True
                return self._close(character)
            case "key" | "key_or_end":
                if character == '"':
                    self._string, self._is_key = "plain", True
                    return True
                return self._want == "key_or_end" and self._close(character)
            case "value" | "value_or_end":
                if self._want == "value_or_end" and character == "]":
                    return self._close(character)
                return self._begin_value(character)

    def _begin_value(self, character: str) -> bool:
        if character == '"':
            self._string, self._is_key = "plain", False
            return True
        if character in "{[":
            self._stack.append(character)
            self._want = "key_or_end" if character == "{" else "value_or_end"
            return len(self._stack) <= _MAX_DEPTH
        return character in _SCALAR_CHARACTERS and self._read_in_scalar(character)

    def _read_in_string(self, character: str) -> bool:
        match self._string:
            case "escape":
                self._string, self._num_hex = ("hex", 0) if character == "u" else ("plain", 0)
                return character in '"\\/bfnrtu'
            case "hex":
                self._num_hex += 1
                if self._num_hex == 4:
                    self._string = "plain"
                return character in "0123456789abcdefABCDEF"
        if character == "\\":
            self._string = "escape"
            return True
        if character != '"':
            return character >= " "
        self._string = "no"
        if self._is_key:
            self._want = "colon"
        else:
            self._end_value()
        return True

    def _read_in_scalar(self, character: str) -> bool:
        self._scalar += character
        if len(self._scalar) > _MAX_SCALAR:
            return False
        if self._scalar[0] in "tfn":
            return any(literal.startswith(self._scalar) for literal in _LITERALS)
        return _NUMBER_HEAD.fullmatch(self._scalar) is not None

    def _end_scalar(self) -> None:
        whole = self._scalar in _LITERALS or _NUMBER.fullmatch(self._scalar) is not None
        self._scalar = ""
        if whole:
            self._end_value()
        else:
            self.verdict = "bad"

    def _close(self, character: str) -> bool:
        if not self._stack or character != {"{": "}", "[": "]"}[self._stack[-1]]:
            return False
        self._stack.pop()
        self._end_value()
        return True

    def _end_value(self) -> None:
        self._want = "comma_or_end"
        if not self._stack:
            self.verdict = "done"
