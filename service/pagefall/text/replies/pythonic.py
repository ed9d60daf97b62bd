"""Calls as a list in Python's syntax, `[f(a=1), g()]`, which is the whole answer (Llama 3.2 and 4, ToolACE).

Arguments are no JSON in it, so a list is read whole and its arguments are written anew.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.json_scan import Verdict
from pagefall.text.replies.marked_calls import CallBlock, MarkedCalls
from pagefall.text.replies.parts import ReplyPart

BEGIN: Final = "<|python_start|>"
END: Final = "<|python_end|>"

_HEAD: Final = re.compile(r"\[\s*(?:[A-Za-z_][\w.-]*\s*(?:\(|\Z)|\Z)")
_JSON_NAMES: Final = {"true": True, "false": False, "null": None}
_FAULTS: Final = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


class PythonicParser(MarkedCalls):
    """`calls` knows the names of the tools: any other list is an answer like any other."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls, (BEGIN,))
        self._begun = False

    def block(self, marker: str) -> CallBlock:
        return _Block(self._calls, END if marker else "")

    def _read_text(self, parts: list[ReplyPart]) -> bool:
        if not self._begun:
            head = self._pending.lstrip()
            if not head:
                return False
            self._begun = True
            if head.startswith("["):
                self._gap, self._raw, self._pending = self._pending[: -len(head)], [], head
                self._block = self.block("")
                return True
        return super()._read_text(parts)


class _Block:
    def __init__(self, calls: Calls, closing: str) -> None:
        self.verdict: Verdict = "more"
        self.is_told = False
        self._calls = calls
        self._closing = closing
        self._list = ""
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def push(self, text: str, start: int, parts: list[ReplyPart]) -> int:
        for at in range(start, len(text)):
            if self.is_told and not self._read_closing(text[at]):
                return at
            if not self.is_told:
                self._list += text[at]
                self._read(text[at])
            if self.verdict == "more" and not self.is_told and self._depth == 0 and self._list.strip():
                self._end_list(parts)
            if self.verdict != "more":
                return at + 1
        return len(text)

    def finish(self, parts: list[ReplyPart]) -> None:
        """A list that is not whole calls nothing."""

    def _read(self, character: str) -> None:
        if self._quote:
            if self._escaped or character == "\\":
                self._escaped = not self._escaped
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}":
            self._depth -= 1
        if self._depth == 1 and not _HEAD.match(self._list.strip()):
            self.verdict = "bad"  # known early, so that such an answer is not held up

    def _read_closing(self, character: str) -> bool:
        """Whether the character is one of the closing tag, or white space before it."""
        if self._closing.startswith(character):
            self._closing = self._closing[1:]
            self.verdict = "more" if self._closing else "done"
            return True
        if self._closing == END and character.isspace():
            return True
        self.verdict = "done"
        return False

    def _end_list(self, parts: list[ReplyPart]) -> None:
        found = _calls_in(self._list.strip())
        if not found or not all(self._calls.may(name) for name, _ in found):
            self.verdict = "bad"
            return
        for name, arguments in found:
            parts += self._calls.whole(name, arguments)
        self.is_told = True
        self.verdict = "more" if self._closing else "done"


def _calls_in(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments, as JSON; None where it is no list of calls with named arguments."""
    try:
        body = ast.parse(text, mode="eval").body
        if not isinstance(body, ast.List):
            return None
        return [_call(element) for element in body.elts]
    except _FAULTS:
        return None


def _call(node: ast.expr) -> tuple[str, str]:
    """Raises `ValueError` where it is no call, or an argument is no literal."""
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no call with named arguments")
    arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # a lone surrogate is a ValueError too
    return ast.unparse(node.func), text


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            named = zip(keys, values, strict=True)
            return {_key(key): _value(value) for key, value in named}
        case _:
            value = ast.literal_eval(node)
            if not (value is None or isinstance(value, bool | int | float | str)):
                raise ValueError("no value that JSON has")
            return value


def _key(node: ast.expr | None) -> str:
    key = None if node is None else ast.literal_eval(node)
    if not isinstance(key, str):
        raise ValueError("a key that is no text")  # noqa: TRY004 - it is the model's text that is wrong
    return key
