"""The workers: who they are, what state each is in, and what each has under way. One owner, one loop, no I/O.

    joining ---- probes succeed ------------> healthy
    healthy ---- probes fail, or it refuses
                 a connection --------------> unhealthy -- probes succeed --> healthy
    any of them - an operator drains it ----> draining --- or takes it back -> joining
    any of them - an operator removes it ---> draining, and removed with its last request

A worker is given requests while it is healthy. While another one is there, one whose last probe failed is spared, as is
one with an open breaker; where none is left, such workers are asked all the same: their answer is better than ours.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import anyio

from pagefall.errors import RequestError
from pagefall.router.breaker import Permit, WorkerBreaker
from pagefall.router.config import WorkersConfig
from pagefall.router.routing import WorkerId, WorkerView
from pagefall.router.speeds import MeasuredSpeeds
from pagefall.router.worker_urls import WorkerSpec

_log = logging.getLogger("pagefall.router")

WorkerState = Literal["joining", "healthy", "unhealthy", "draining", "removed"]
Origin = Literal["flag", "file", "api"]
"""Who named it; the file takes back only what the file gave."""

Outcome = Literal[
    "ok",
    "client_error",
    "server_error",
    "busy",
    "connect_error",
    "reset",
    "timeout",
    "worker_lost",
    "broken",
    "client_gone",
    "shutdown",
]
"""How one request at one worker ended. `ok`: an answer below 400. `busy`: 503 with Retry-After, a full queue. `broken`:
after the first byte of its answer. `worker_lost`: given up before that, since the worker's probes failed.
"""

AbandonReason = Literal["worker_lost", "removed", "shutdown"]

_ANSWERS: Final = frozenset[Outcome]({"ok", "client_error", "busy"})
_SAYS_NOTHING: Final = frozenset[Outcome]({"client_gone", "shutdown"})

_MAX_WORKERS: Final = 1024


@dataclass(eq=False)
class Worker:
    """One worker. The registry alone writes to it. `models` are the names that it serves, empty: not known."""

    spec: WorkerSpec
    name: str
    origin: Origin
    breaker: WorkerBreaker
    state: WorkerState = "joining"
    is_leaving: bool = False
    """Draining, to be removed with its last request."""
    has_been_healthy: bool = False
    speeds: MeasuredSpeeds = field(default_factory=MeasuredSpeeds)
    models: frozenset[str] = frozenset()
    trouble: str | None = None
    """Why its last probe failed; None where it did not."""
    num_probe_failures: int = 0
    num_probe_successes: int = 0
    """In a row, both."""
    leases: set[Lease] = field(default_factory=set)
    num_prefill_tokens: int = 0
    num_ended: Counter[Outcome] = field(default_factory=Counter)
    wanted: anyio.Event = field(default_factory=anyio.Event)
    """Set when a probe should not wait for its time."""

    @property
    def worker_id(self) -> WorkerId:
        return self.spec.worker_id

    @property
    def answers(self) -> bool:
        """As far as anybody knows; one that drains does, though it is given nothing new."""
        return self.state in ("healthy", "draining")

    def view(self) -> WorkerView:
        return WorkerView(
            worker_id=self.worker_id,
            num_outstanding=len(self.leases),
            num_outstanding_prefill_tokens=self.num_prefill_tokens,
            prefill_tokens_per_second=self.speeds.prefill_tokens_per_second,
            seconds_per_output=self.speeds.seconds_per_output,
        )


class WorkerListener(Protocol):
    """Hears of workers, on the loop's thread. `lost`: what it had in its cache may be gone; so it is when `removed`."""

    def added(self, worker: Worker) -> None: ...

    def ready(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None: ...


class Lease:
    """One request at one worker, from when it is sent to its end. `scope` is what it waits in: left, it gives up."""

    def __init__(self, registry: WorkerRegistry, worker: Worker, permit: Permit, num_prefill_tokens: int) -> None:
        self.worker = worker
        self.scope = anyio.CancelScope()
        self.abandoned: AbandonReason | None = None
        self.has_first_byte = False
        self.num_tokens_ahead = worker.num_prefill_tokens + num_prefill_tokens
        """What was to be computed before its first token, its own prompt included."""
        self._registry = registry
        self._permit = permit
        self._num_prefill_tokens = num_prefill_tokens
        worker.num_prefill_tokens += num_prefill_tokens
        worker.leases.add(self)

    def prefilled(self) -> None:
        """Its prompt is computed. May be told several times."""
        self.worker.num_prefill_tokens -= self._num_prefill_tokens
        self._num_prefill_tokens = 0

    def first_byte(self) -> None:
        self.has_first_byte = True
        self.prefilled()

    def abandon(self, reason: AbandonReason) -> None:
        self.abandoned = self.abandoned or reason
        self.scope.cancel()

    def end(self, outcome: Outcome, *, is_failure: bool = True) -> None:
        """Once. `is_failure` False: this `server_error` says nothing against the worker."""
        self.prefilled()
        self.worker.leases.discard(self)
        self._registry.ended(self.worker, self._permit, outcome, is_failure=is_failure)


class WorkerRegistry:
    def __init__(self, config: WorkersConfig, *, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._workers: dict[WorkerId, Worker] = {}
        self._listeners: list[WorkerListener] = []
        self._num_added = 0
        self._changed = anyio.Event()

    def listen(self, listener: WorkerListener) -> None:
        """It hears of the workers there are already, too."""
        self._listeners.append(listener)
        for worker in self._workers.values():
            listener.added(worker)

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def has_ready(self) -> bool:
        return any(worker.state == "healthy" for worker in self._workers.values())

    @property
    def has_any(self) -> bool:
        """Whether one is healthy, or may become so by itself."""
        return any(worker.state != "draining" for worker in self._workers.values())

    @property
    def num_outstanding(self) -> int:
        return sum(len(worker.leases) for worker in self._workers.values())

    def get(self, name: str) -> Worker | None:
        """By its name or its URL."""
        wanted = name.rstrip("/")
        return next((w for w in self._workers.values() if wanted in (w.name, w.worker_id)), None)

    def candidates(
        self, tried: Collection[WorkerId] = (), *, model: str | None = None, only: WorkerId | None = None
    ) -> list[Worker]:
        """Who may be given a request now, the spared ones only where there is no other; none of `tried`.

        Those that serve `model` where any does, else all: a worker's 404 is the answer then. `only`: nobody else may,
        and this one even while it drains: what it is asked for is a part of what it has begun.
        """
        if only is not None:
            worker = self._workers.get(only)
            return [worker] if worker is not None and worker.answers and only not in tried else []
        healthy = [w for w in self._workers.values() if w.state == "healthy" and w.worker_id not in tried]
        if model is not None:
            healthy = [w for w in healthy if model in w.models] or healthy
        now = self._clock()
        return [w for w in healthy if w.trouble is None and w.breaker.allows(now)] or healthy

    def lease(self, worker: Worker, *, num_prefill_tokens: int) -> Lease:
        return Lease(self, worker, worker.breaker.begin(self._clock()), num_prefill_tokens)

    async def wait_for_change(self) -> None:
        """Returns when a worker has become ready, or has gone."""
        await self._changed.wait()

    # What operators do.

    def add(self, spec: WorkerSpec, origin: Origin) -> Worker:
        """One that is known already is taken back if it was draining. Raises `RequestError`."""
        known = self._workers.get(spec.worker_id)
        if known is not None:
            self._take_back(known)
            return known
        if len(self._workers) >= _MAX_WORKERS:
            raise RequestError(f"There are {_MAX_WORKERS} workers already: remove one first.", status=409)
        if spec.name is not None and self.get(spec.name) is not None:
            raise RequestError(
                f"Another worker is called {spec.name!r}: choose another name, or leave it out.",
                status=409,
                param="name",
                code="name_taken",
            )
        worker = Worker(
            spec,
            spec.name or self._free_name(),
            origin,
            WorkerBreaker(
                num_failures_to_open=self._config.breaker_failures, open_seconds=self._config.breaker_open_seconds
            ),
        )
        self._workers[spec.worker_id] = worker
        _log.info("worker %s joins: %s", worker.name, worker.worker_id)
        for listener in self._listeners:
            listener.added(worker)
        return worker

    def drain(self, worker: Worker) -> None:
        """No request is sent to it any more; those under way go on."""
        if worker.state not in ("draining", "removed"):
            _log.info("worker %s drains; requests under way: %d", worker.name, len(worker.leases))
            worker.state = "draining"
            self._tell_change()

    def remove(self, worker: Worker, *, at_once: bool = False) -> None:
        """Drains it; with its last request, or `at_once`, it is gone. One that is gone already stays so."""
        if worker.state == "removed":
            return
        if at_once:
            worker.state = "draining"
        else:
            self.drain(worker)
        worker.is_leaving = True
        if at_once:
            for lease in tuple(worker.leases):
                lease.abandon("removed")
        if at_once or not worker.leases:
            self._forget(worker)

    def abandon_all(self, reason: AbandonReason) -> None:
        for worker in self._workers.values():
            for lease in tuple(worker.leases):
                lease.abandon(reason)

    # What is heard of them.

    def probe_succeeded(self, worker: Worker) -> None:
        worker.trouble = None
        worker.num_probe_failures = 0
        worker.num_probe_successes += 1
        needed = 1 if worker.state == "joining" else self._config.health_successes
        if worker.state in ("joining", "unhealthy") and worker.num_probe_successes >= needed:
            _log.info("worker %s is healthy", worker.name)
            worker.breaker.reset()
            worker.state, worker.has_been_healthy = "healthy", True
            self._tell_change()
            for listener in self._listeners:
                listener.ready(worker)

    def probe_failed(self, worker: Worker, trouble: str, *, is_silent: bool) -> None:
        """`is_silent`: nothing came back. Else it lives, and wants no requests; what it has under way goes on."""
        worker.trouble = trouble
        worker.num_probe_successes = 0
        worker.num_probe_failures += 1
        if worker.num_probe_failures < self._config.health_failures:
            return
        self._unhealthy(worker, trouble)
        if is_silent:
            for lease in tuple(worker.leases):
                if not lease.has_first_byte:
                    lease.abandon("worker_lost")

    def connection_refused(self, worker: Worker) -> None:
        """Nobody is there: the next request must not find that out again."""
        worker.trouble = "a connection was refused"
        worker.num_probe_successes = 0
        worker.wanted.set()
        self._unhealthy(worker, worker.trouble)

    def ended(self, worker: Worker, permit: Permit, outcome: Outcome, *, is_failure: bool) -> None:
        """Told by a lease."""
        worker.num_ended[outcome] += 1
        if outcome in _SAYS_NOTHING:
            worker.breaker.withdrawn(permit)
        elif outcome in _ANSWERS or not is_failure:
            worker.breaker.succeeded(permit)
        elif worker.breaker.failed(permit, self._clock()):
            _log.warning("worker %s fails (%s): it is left alone for a while", worker.name, outcome)
        if worker.is_leaving and not worker.leases and worker.state != "removed":
            self._forget(worker)

    def _unhealthy(self, worker: Worker, trouble: str) -> None:
        if worker.state not in ("joining", "healthy"):
            return
        was_healthy = worker.state == "healthy"
        worker.state = "unhealthy"
        if worker.has_been_healthy:
            _log.warning("worker %s is unhealthy: %s", worker.name, trouble)
        else:  # it loads its model, as far as anybody knows
            _log.info("worker %s is not up yet: %s", worker.name, trouble)
        if was_healthy:
            for listener in self._listeners:
                listener.lost(worker)

    def _take_back(self, worker: Worker) -> None:
        if worker.state == "draining":
            worker.state, worker.is_leaving = "joining", False
            worker.num_probe_failures = worker.num_probe_successes = 0
            worker.wanted.set()

    def _forget(self, worker: Worker) -> None:
        worker.state = "removed"
        del self._workers[worker.worker_id]
        worker.wanted.set()
        _log.info("worker %s is removed", worker.name)
        self._tell_change()
        for listener in self._listeners:
            listener.removed(worker)

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _free_name(self) -> str:
        taken = {worker.name for worker in self._workers.values()}
        while True:
            name = f"w{self._num_added}"
            self._num_added += 1
            if name not in taken:
                return name


def num_by_state(workers: Iterable[Worker]) -> Counter[WorkerState]:
    return Counter(worker.state for worker in workers)
