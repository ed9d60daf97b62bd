"""A store behind a deadline and a circuit breaker: whatever it does or fails to do, whoever asks gets an answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar

from pagefall.tiers.breaker import CircuitBreaker, FailureKind, Operation, Permit
from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, GetOutcome, Key, PutOutcome, StorageBackend

T = TypeVar("T")

_log = logging.getLogger("pagefall.storage")


class Unanswered(NamedTuple):
    """The store said nothing, or was not asked.

    `remains` is what is left of an operation that was given up: until it is done it may use its buffers.
    """

    answer: Literal["timeout", "error", "breaker_open"]
    remains: asyncio.Future[Any] | None = None

    async def end(self) -> None:
        """Returns when nothing of the operation uses its buffers any more."""
        if self.remains is not None:
            await asyncio.wait({self.remains})


class Trouble(NamedTuple):
    """Why an operation counts as failed, though it returned. `reason` is one line."""

    kind: FailureKind
    reason: str


class GuardedStore:
    """Runs operations of one backend. A probe of the breaker is an operation of its own, which no request waits for:
    it asks for one key, and reads it into a buffer of `value_bytes`.

    `num_failures` counts operations that returned nothing, by "timeout" and "error", in the counter given or, without
    one, in one of its own. Whoever looks into the results of the others may add what they find.
    """

    def __init__(
        self,
        backend: StorageBackend,
        breaker: CircuitBreaker,
        *,
        deadline_seconds: float,
        value_bytes: int,
        clock: Callable[[], float],
        num_failures: Counter[str] | None = None,
    ) -> None:
        self.backend = backend
        self.breaker = breaker
        self.num_failures = Counter[str]() if num_failures is None else num_failures
        self._deadline_seconds = deadline_seconds
        self._value_bytes = value_bytes
        self._clock = clock
        self._background = set[asyncio.Future[Any]]()
        self._aside: asyncio.Future[Any] | None = None

    async def call(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        *,
        kind: Operation,
        key: Key,
        judge: Callable[[T], Trouble | None] = lambda _: None,
    ) -> T | Unanswered:
        """What the operation returns, if it does so within the deadline and the breaker lets it begin.

        `key` is one of those it is about, for a probe in its place. `judge` says whether a result is a failure for the
        breaker; it is returned all the same. Nothing that a backend raises comes out.
        """
        permit = self.breaker.begin(self._clock(), kind)
        if permit is None:
            return Unanswered("breaker_open")
        if permit.is_probe:
            self._keep(asyncio.ensure_future(self._probe(permit, key)))
            return Unanswered("breaker_open")
        return await self._run(permit, operation, judge)

    async def ask_aside(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T | BaseException:
        """What the operation returns, if it does so within the deadline, or why there is nothing.

        For what no request needs: neither the breaker nor the counters hear of it, and it is not begun unless the
        breaker is closed, nor before the last one has let go. Nothing that a backend raises comes out.
        """
        if self.breaker.state != "closed":
            return StorageError("it is left alone for a while")
        if self._aside is not None and not self._aside.done():
            return StorageError("it was asked before, and has not ended that")
        asked = self._aside = self._keep(asyncio.ensure_future(operation()))
        try:
            await asyncio.wait({asked}, timeout=self._deadline_seconds)
            if not asked.done():
                return TimeoutError(f"no answer within {self._deadline_seconds:g} s")
            if asked.cancelled():
                return StorageError("the backend gave the operation up")
            error = asked.exception()
            return asked.result() if error is None else error
        finally:
            asked.cancel()

    async def aclose(self) -> None:
        """Ends what is under way, and the backend, which gets as long for it as for an operation. Raises nothing."""
        for future in self._background:
            future.cancel()
        closing = self._keep(asyncio.ensure_future(self.backend.aclose()))
        await asyncio.wait({closing}, timeout=self._deadline_seconds)
        if not closing.done():
            closing.cancel()
            _log.warning("the store was not closed within %g s", self._deadline_seconds)
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            _log.error("the store could not be closed", exc_info=error)

    async def _run(
        self, permit: Permit, operation: Callable[[], Coroutine[Any, Any, T]], judge: Callable[[T], Trouble | None]
    ) -> T | Unanswered:
        under_way = self._keep(asyncio.ensure_future(operation()))
        try:
            await asyncio.wait({under_way}, timeout=self._deadline_seconds)
        except asyncio.CancelledError:
            under_way.cancel()
            raise
        if not under_way.done():
            under_way.cancel()
            self._fault(permit, Trouble("timeout", f"no answer within {self._deadline_seconds:g} s"))
            return Unanswered("timeout", under_way)
        if under_way.cancelled():
            self._fault(permit, Trouble("error", "the backend gave the operation up"))
            return Unanswered("error")
        error = under_way.exception()
        if isinstance(error, StorageError):
            self._fault(permit, Trouble("error", str(error)))
            return Unanswered("error")
        if error is not None:
            _log.error("a bug in the storage backend %s", self.backend.description, exc_info=error)
            self._fault(permit, Trouble("error", f"{type(error).__name__}: {error}"))
            return Unanswered("error")
        result = under_way.result()
        trouble = judge(result)
        if trouble is not None:
            self._failed(permit, trouble)
        elif self.breaker.succeeded(permit):
            _log.info("the store answers again: %s", self.backend.description)
        return result

    def _fault(self, permit: Permit, trouble: Trouble) -> None:
        self.num_failures[trouble.kind] += 1
        self._failed(permit, trouble)

    def _failed(self, permit: Permit, trouble: Trouble) -> None:
        if self.breaker.failed(permit, trouble.kind, self._clock()):
            _log.warning("the store is left alone for a while, %s: %s", self.backend.description, trouble.reason)

    async def _probe(self, permit: Permit, key: Key) -> None:
        async def read() -> list[GetOutcome]:
            await self.backend.contains([key])
            return await self.backend.get([key], [memoryview(bytearray(self._value_bytes))])

        await self._run(permit, read, read_trouble)

    def _keep(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        """A reference until it is done, when its exception, if any, is of no interest any more."""

        def forget(done: asyncio.Future[T]) -> None:
            self._background.discard(done)
            if not done.cancelled():
                done.exception()

        self._background.add(future)
        future.add_done_callback(forget)
        return future


def read_trouble(outcomes: list[GetOutcome]) -> Trouble | None:
    """A read failed if the store could not say what became of any of its values."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if len(failures) < len(outcomes):
        return None
    kind: FailureKind = "timeout" if any(failure.kind == "timeout" for failure in failures) else "error"
    return Trouble(kind, failures[0].reason)


def write_trouble(outcomes: list[PutOutcome]) -> Trouble | None:
    """Only silence is. A store that says it cannot take pages may still give those it has."""
    silent = [outcome for outcome in outcomes if isinstance(outcome, Failed) and outcome.kind == "timeout"]
    return Trouble("timeout", silent[0].reason) if len(silent) == len(outcomes) else None


def one_each(outcomes: list[T], asked: Sequence[object], kinds: UnionType) -> list[T]:
    """The outcomes, if they are what a backend may return."""
    if len(outcomes) != len(asked):
        raise ValueError(f"{len(outcomes)} outcomes for {len(asked)} values")
    for outcome in outcomes:
        if not isinstance(outcome, kinds):
            raise TypeError(f"not an outcome: {outcome!r}")
    return outcomes
