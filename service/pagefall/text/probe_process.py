"""The server's side of `grammar_probe`: a process that starts when it is needed, and again when it has died."""

from __future__ import annotations

import selectors
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

import msgspec

from pagefall.text.grammar_probe import Verdict, read_frame, write_frame
from pagefall.text.matchers import VocabularyFacts

DEADLINE_SECONDS: Final = 1.0
"""For one grammar. Ordinary ones take milliseconds."""

_START_SECONDS: Final = 60.0


class ProbeError(Exception):
    """The process could not be started, or does not know the tokenizer. The message says why."""


class GrammarProbe:
    """Not thread-safe: whoever calls `check` waits for it."""

    def __init__(self, facts: VocabularyFacts, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._facts = facts
        self._deadline_seconds = deadline_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, grammar: str) -> str | None:
        """Why the grammar cannot be used, None if it can be. Returns within the deadline, once the process runs.

        Raises `ProbeError`.
        """
        process = self._running()
        try:
            verdict = self._ask(process, grammar.encode(), self._deadline_seconds)
        except TimeoutError:
            self.close()
            return f"it is too complex to be compiled within {self._deadline_seconds:g} s"
        if verdict is None:
            self.close()
            return "it is nested too deeply or grows too large when it is compiled"
        return verdict.reason

    def close(self) -> None:
        """Ends the process. The next `check` starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "pagefall.text.grammar_probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            ready = self._ask(process, msgspec.json.encode(self._facts), _START_SECONDS)
        except TimeoutError:
            ready = None
        if ready is None or ready.reason is not None:
            self.close()
            raise ProbeError("the process that tries grammars out did not start" if ready is None else ready.reason)
        return process

    def _ask(self, process: subprocess.Popen[bytes], payload: bytes, seconds: float) -> Verdict | None:
        """None where the process has died. Raises `TimeoutError`."""
        assert process.stdin is not None
        assert process.stdout is not None
        until = time.monotonic() + seconds
        with suppress(BrokenPipeError):
            write_frame(process.stdin, payload)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            # A verdict is written at once, so when it begins to arrive it is there.
            if not selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
        answer = read_frame(process.stdout)
        return None if answer is None else msgspec.json.decode(answer, type=Verdict)
