"""The server's side of `grammar_probe`: a process that starts when it is needed, and again when it has died."""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

import msgspec

from pagefall.text.grammar_probe import Verdict, read_frame, write_frame
from pagefall.text.matchers import VocabularyFacts

CPU_SECONDS: Final = 1.0
"""For one grammar. Ordinary ones take milliseconds."""

DEADLINE_SECONDS: Final = 5.0
"""Until its verdict. Only where others keep the machine's cores busy is this less than the CPU time."""

_START_SECONDS: Final = 60.0


class ProbeError(Exception):
    """The process could not be started, or does not know the tokenizer. The message says why."""


class GrammarProbe:
    """Not thread-safe: whoever calls `check` waits for it."""

    def __init__(
        self,
        facts: VocabularyFacts,
        *,
        cpu_seconds: float = CPU_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self._facts = facts
        self._cpu_seconds = cpu_seconds
        self._deadline_seconds = deadline_seconds
        self._process: _Process | None = None

    def check(self, grammar: str) -> str | None:
        """Why the grammar cannot be used, None if it can be. Returns within the deadline, once the process runs.

        Raises `ProbeError`, and `TimeoutError` at the deadline: that says nothing of the grammar.
        """
        process = self._ready()
        try:
            verdict = process.ask(grammar.encode(), self._deadline_seconds)
        except TimeoutError:
            self._restart()
            raise
        if verdict is not None:
            return verdict.reason
        self._restart()
        if process.was_too_slow:
            return f"it is too complex to be compiled within {self._cpu_seconds:g} s"
        return "it is nested too deeply or grows too large when it is compiled"

    def close(self) -> None:
        """Ends the process. The next `check` starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _restart(self) -> None:
        """Nobody waits for the new process: it starts while the refusal is sent."""
        self.close()
        self._process = _Process(self._facts, self._cpu_seconds)

    def _ready(self) -> _Process:
        if self._process is None or not self._process.is_alive:
            self.close()
            self._process = _Process(self._facts, self._cpu_seconds)
        try:
            self._process.wait_until_ready()
        except ProbeError:
            self.close()
            raise
        return self._process


class _Process:
    """A started process. It gets the facts from a thread, as they are more than a pipe holds."""

    def __init__(self, facts: VocabularyFacts, cpu_seconds: float) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own module, and a number
            [sys.executable, "-m", "pagefall.text.grammar_probe", str(cpu_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._is_ready = False
        self._teller = threading.Thread(target=self._send, args=(msgspec.json.encode(facts),), daemon=True)
        self._teller.start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def was_too_slow(self) -> bool:
        """Whether it has ended because a grammar took all its CPU time."""
        return self._process.returncode == -signal.SIGPROF

    def wait_until_ready(self) -> None:
        """Returns at once after the first time. Raises `ProbeError`."""
        if self._is_ready:
            return
        try:
            verdict = self._receive(_START_SECONDS)
        except TimeoutError:
            verdict = None
        if verdict is None or verdict.reason is not None:
            started = "the process that tries grammars out did not start"
            raise ProbeError(started if verdict is None or verdict.reason is None else verdict.reason)
        self._teller.join()
        self._is_ready = True

    def ask(self, grammar: bytes, seconds: float) -> Verdict | None:
        """None where the process has died. Raises `TimeoutError`."""
        self._send(grammar)
        return self._receive(seconds)

    def end(self) -> None:
        self._process.kill()
        self._teller.join()
        for pipe in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):  # what was still to be written
                pipe.close()
        self._process.wait()

    def _send(self, payload: bytes) -> None:
        with suppress(BrokenPipeError):
            write_frame(self._stdin, payload)

    def _receive(self, seconds: float) -> Verdict | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            # A verdict is written at once, so when it begins to arrive it is there.
            if not selector.select(seconds):
                raise TimeoutError
        answer = read_frame(self._stdout)
        return None if answer is None else msgspec.json.decode(answer, type=Verdict)
