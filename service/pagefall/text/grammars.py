"""The grammars that answers are held to: tried out, compiled once, and copied for every request that has one.

A copy takes microseconds and shares what the compiled one has learnt about its language.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from llguidance import LLMatcher, LLTokenizer

from pagefall.errors import RequestError
from pagefall.text.grammar import unusable
from pagefall.text.matchers import UnusableGrammarError, VocabularyFacts, load_vocabulary, make_matcher
from pagefall.text.probe_process import GrammarProbe, ProbeError

MAX_COMPILED: Final = 64
"""Kept beside those that are held."""

MAX_REFUSED: Final = 256


class Probe(Protocol):
    def check(self, grammar: str) -> str | None: ...
    def close(self) -> None: ...


class Grammars:
    """May be used from several threads; `compile` blocks for a second and more, the other methods hardly ever."""

    def __init__(
        self,
        facts: VocabularyFacts,
        *,
        probe: Callable[[VocabularyFacts], Probe] = GrammarProbe,
        max_compiled: int = MAX_COMPILED,
    ) -> None:
        """Nothing is loaded or started before there is a grammar."""
        self._facts = facts
        self._probe = probe(facts)
        self._max_compiled = max_compiled
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._refused: OrderedDict[str, str] = OrderedDict()
        self._compiling = threading.Lock()
        """Held while a grammar is tried out and compiled, one at a time."""
        self._lock = threading.Lock()
        """Held for moments, around the tables."""

    def close(self) -> None:
        """Ends the process that tries grammars out; waits for what is being compiled."""
        with self._compiling:
            self._probe.close()

    def is_compiled(self, grammar: str) -> bool:
        with self._lock:
            return grammar in self._compiled

    def hold(self, grammar: str) -> None:
        """From now on it is not forgotten once it is compiled, until it is released as often as it was held."""
        with self._lock:
            self._held[grammar] += 1

    def release(self, grammar: str) -> None:
        with self._lock:
            self._held[grammar] -= 1
            if self._held[grammar] <= 0:
                del self._held[grammar]
                self._forget_some()

    def compile(self, grammar: str, *, param: str) -> None:
        """Does nothing for what is compiled already.

        Raises `RequestError`: 400 naming `param` for what does not compile, or not within the probe's CPU time, and
        for every grammar where the model's tokenizer is one that llguidance does not know. Raises `TimeoutError` where
        the machine is too busy to tell, which is not remembered.
        """
        with self._compiling:
            if self.is_compiled(grammar):
                return
            reason = self._refused.get(grammar) or self._try_out(grammar, param)
            if reason is not None:
                self._refused[grammar] = reason
                while len(self._refused) > MAX_REFUSED:
                    self._refused.popitem(last=False)
                raise unusable(param, reason)
            try:
                self._keep(grammar, self._make(grammar))
            except UnusableGrammarError as error:
                raise unusable(param, str(error)) from error

    def matcher(self, grammar: str) -> LLMatcher:
        """At the start, for the caller alone. Compiles what was compiled and forgotten; raises `UnusableGrammarError`
        if that fails.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
        if compiled is None:
            compiled = self._make(grammar)
            self._keep(grammar, compiled)
        return compiled.deep_copy()

    def discard(self, grammar: str) -> None:
        """Forgets the compiled grammar: what its matchers share has reached a limit."""
        with self._lock:
            self._compiled.pop(grammar, None)

    def _try_out(self, grammar: str, param: str) -> str | None:
        try:
            return self._probe.check(grammar)
        except ProbeError as error:
            raise RequestError(
                f"'{param}' is not supported by this server: {error}.", param=param, code="unsupported_parameter"
            ) from error

    def _make(self, grammar: str) -> LLMatcher:
        if self._vocabulary is None:
            self._vocabulary = load_vocabulary(self._facts)
        return make_matcher(self._vocabulary, grammar)

    def _keep(self, grammar: str, matcher: LLMatcher) -> None:
        with self._lock:
            self._compiled[grammar] = matcher
            self._forget_some()

    def _forget_some(self) -> None:
        """Those unused for longest, of those that nobody holds. Called with the lock."""
        idle = [grammar for grammar in self._compiled if grammar not in self._held]
        for grammar in idle[: max(0, len(idle) - self._max_compiled)]:
            del self._compiled[grammar]
