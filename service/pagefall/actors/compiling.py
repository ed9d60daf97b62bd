"""Constraints become grammars without holding up the loop, or the threads that encode prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Final, Protocol

import msgspec

from pagefall.actors.refusals import unavailable
from pagefall.errors import RequestError
from pagefall.messages import SamplingParams
from pagefall.text.constraints import AnyJson, Constraint
from pagefall.text.grammar import grammar_text


class GrammarCompiler(Protocol):
    """See `text.grammars.Grammars`."""

    def is_compiled(self, grammar: str) -> bool: ...
    def hold(self, grammar: str) -> None: ...
    def release(self, grammar: str) -> None: ...

    def compile(self, grammar: str, *, param: str) -> None:
        """Blocks, for a second at most where the machine is not overloaded. Raises `RequestError` naming `param`, and
        `TimeoutError` where it is.
        """

    def close(self) -> None: ...


MAX_WAITING: Final = 8
"""Grammars under way. Each may take seconds, so the last of a longer line would wait longer than its client does."""


class _Compiling:
    """A grammar under way, for all who wait for it."""

    def __init__(self, done: asyncio.Future[None]) -> None:
        self.done = done
        self.num_waiting = 0


class ConstraintCompiler:
    """Compiles on one thread of its own. Used as a context manager; leaving it closes the grammars."""

    def __init__(self, grammars: GrammarCompiler | None, *, max_waiting: int = MAX_WAITING) -> None:
        """Without `grammars` every constraint is refused. `max_waiting`: how many different ones may be under way."""
        self._grammars = grammars
        self._max_waiting = max_waiting
        self._under_way: dict[tuple[str, str], _Compiling] = {}
        """By the grammar and the field that it came in, which its refusal names."""
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
        """`sampling` with the constraint's grammar, which is compiled when this returns, and stays so until `release`.

        Raises `RequestError`: 400 naming the constraint's field where it cannot be compiled, 503 where `max_waiting`
        others are in line or the machine is too busy. What is compiled already never waits.
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
        self._grammars.hold(grammar)
        try:
            if not self._grammars.is_compiled(grammar):
                await self._compile((grammar, param), partial(self._grammars.compile, grammar, param=param))
        except BaseException:
            self._grammars.release(grammar)
            raise
        return msgspec.structs.replace(sampling, grammar=grammar)

    def release(self, sampling: SamplingParams) -> None:
        """The request with what `constrain` returned has ended."""
        if self._grammars is not None and sampling.grammar is not None:
            self._grammars.release(sampling.grammar)

    async def _compile(self, key: tuple[str, str], work: Callable[[], None]) -> None:
        """Once for all who want the same. Begun or not, nobody waits for what nobody wants any more."""
        compiling = self._under_way.get(key)
        if compiling is None:
            if len(self._under_way) >= self._max_waiting:
                raise unavailable(f"{len(self._under_way)} new constraints wait to be compiled")
            compiling = _Compiling(asyncio.get_running_loop().run_in_executor(self._thread, work))
            self._under_way[key] = compiling
        compiling.num_waiting += 1
        try:
            await asyncio.shield(compiling.done)
        except TimeoutError:
            raise unavailable("The server is too busy to compile a new constraint") from None
        finally:
            compiling.num_waiting -= 1
            if not compiling.num_waiting:
                compiling.done.cancel()
                del self._under_way[key]
