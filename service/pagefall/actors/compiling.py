"""Constraints become grammars without holding up the loop, or the threads that encode prompts."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Protocol

import msgspec

from pagefall.actors.refusals import unavailable
from pagefall.errors import RequestError
from pagefall.messages import SamplingParams
from pagefall.text.constraints import AnyJson, Constraint
from pagefall.text.grammar import grammar_text


class GrammarCompiler(Protocol):
    """See `text.grammars.Grammars`."""

    def is_compiled(self, grammar: str) -> bool: ...

    def compile(self, grammar: str, *, param: str) -> None:
        """Blocks, for a second at most where the machine is not overloaded. Raises `RequestError` naming `param`."""

    def close(self) -> None: ...


class ConstraintCompiler:
    """Compiles on one thread of its own. Used as a context manager; leaving it closes the grammars."""

    def __init__(self, grammars: GrammarCompiler | None, *, max_waiting: int) -> None:
        """Without `grammars` every constraint is refused."""
        self._grammars = grammars
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-compiler")

    def __enter__(self) -> ConstraintCompiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()

    async def constrain(self, sampling: SamplingParams, constraint: Constraint | None) -> SamplingParams:
        """`sampling` with the constraint's grammar, which is compiled when this returns.

        Raises `RequestError`: 400 naming the constraint's field where it cannot be compiled, 503 where `max_waiting`
        others are in line. What is compiled already never waits.
        """
        if constraint is None:
            return sampling
        param = "response_format" if isinstance(constraint, AnyJson) else constraint.param
        if self._grammars is None:
            raise RequestError(
                f"'{param}' is not supported by this server: its model has no token that ends an answer.",
                param=param,
                code="unsupported_parameter",
            )
        grammar = grammar_text(constraint)
        if not self._grammars.is_compiled(grammar):
            await self._compile(self._grammars, grammar, param)
        return msgspec.structs.replace(sampling, grammar=grammar)

    async def _compile(self, grammars: GrammarCompiler, grammar: str, param: str) -> None:
        if self._num_waiting >= self._max_waiting:
            raise unavailable(f"{self._num_waiting} constraints wait to be compiled")
        self._num_waiting += 1
        try:
            work = partial(grammars.compile, grammar, param=param)
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._num_waiting -= 1
