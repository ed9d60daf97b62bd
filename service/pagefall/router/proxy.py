"""Forwarding: one request in, one worker after the other until one answers, one answer out.

Another worker is asked only before the first byte of an answer has gone to the client, and only where the failure says
nothing about the request: no connection, a reset, silence, 502, 503 or 504.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

import anyio
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from pagefall.api.access import http_request_id, note
from pagefall.api.decode import read_body
from pagefall.api.tasks import run_until_disconnect
from pagefall.errors import RequestError
from pagefall.router.attempts import Attempted, Attempts, Outgoing
from pagefall.router.client_answer import ClientAnswer
from pagefall.router.config import ForwardConfig
from pagefall.router.decisions import Attempt, Decision, DecisionLog
from pagefall.router.gate import Gate, RefusedError, no_worker
from pagefall.router.prompts import PromptReader, ReadRequest, endpoint_of
from pagefall.router.response_homes import ResponseHomes, keeper_is_away, named_response
from pagefall.router.routing import Choice, Policy, WorkerId
from pagefall.router.upstream import forwarded_headers
from pagefall.router.workers import Outcome, Worker, WorkerRegistry

_log = logging.getLogger("pagefall.router")

_AGAIN_SECONDS: Final = 0.2
"""Before a worker that has just failed is asked a second time, as there is no other."""

_MAX_NOTED: Final = 200
"""Characters of what a client wrote that are remembered and logged: thousands of decisions are."""

_BUSY: Final = 503
_NO_WORKERS: Final = "there is none, or all of them drain"


class DecisionObserver(Protocol):
    """Hears of decisions, on the loop's thread."""

    def retried(self, reason: Outcome) -> None: ...

    def ended(self, decision: Decision) -> None:
        """Nobody changes it any more."""


class Proxy:
    """The endpoint of all that workers answer, an ASGI application."""

    def __init__(
        self,
        registry: WorkerRegistry,
        gate: Gate,
        attempts: Attempts,
        reader: PromptReader,
        policies: Policies,
        decisions: DecisionLog,
        homes: ResponseHomes,
        config: ForwardConfig,
        *,
        max_body_bytes: int,
        observers: Sequence[DecisionObserver] = (),
        clock: Callable[[], float] = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        self._registry = registry
        self._gate = gate
        self._attempts = attempts
        self._reader = reader
        self._policies = policies
        self._decisions = decisions
        self._homes = homes
        self._config = config
        self._max_body_bytes = max_body_bytes
        self._observers = observers
        self._clock = clock
        self._unix_clock = unix_clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `RequestError` only before the first byte."""
        body = await read_body(Request(scope, receive), self._max_body_bytes)
        await run_until_disconnect(receive, partial(self._serve, scope, body, send))

    async def _serve(self, scope: Scope, content: bytes, send: Send) -> None:
        arrived_at = self._clock()
        headers = Headers(scope=scope)
        decision = Decision(
            request_id=http_request_id(scope),
            time=round(self._unix_clock(), 3),
            path=scope["path"][:_MAX_NOTED],
            policy=self._policies.name,
        )
        self._decisions.add(decision)
        endpoint = endpoint_of(scope["path"])
        answer = ClientAnswer(send, endpoint)
        try:
            read = await self._reader.read(endpoint, content, headers)
            decision.model = None if read.body.model is None else read.body.model[:_MAX_NOTED]
            decision.is_tokenised = read.route.token_ids is not None
            decision.routing_seconds = self._clock() - arrived_at
            outgoing = Outgoing(
                method=scope["method"],
                target=_target(scope),
                headers=forwarded_headers(headers, decision.request_id),
                body=content,
                is_stream=read.body.stream,
            )
            if not self._registry.has_any:
                raise no_worker(_NO_WORKERS)
            named = named_response(scope["path"], read.body)
            only = None if named is None else await self._homes.find(named, headers, decision.request_id)
            waits_since = self._clock()
            async with self._gate.place(_client(scope, headers, read)):
                decision.queue_seconds = self._clock() - waits_since
                exchange = _Exchange(read, outgoing, answer, decision, arrived_at, only)
                await self._forward(exchange)
        except RequestError as error:
            decision.status = error.status
            decision.refusal = error.code
            raise
        finally:
            decision.status = answer.status or decision.status
            decision.total_seconds = self._clock() - arrived_at
            decision.is_ended = True
            note(scope, decision.summary())
            for observer in self._observers:
                observer.ended(decision)

    async def _forward(self, exchange: _Exchange) -> None:
        config, decision = self._config, exchange.decision
        deadline = exchange.arrived_at + config.retry_deadline
        while True:
            worker, choice = await self._choose(exchange, deadline)
            attempt = decision.begin(worker.name, choice, began_seconds=self._clock() - exchange.arrived_at)
            num_prefill_tokens = max(0, choice.num_prompt_tokens - choice.num_cached_tokens)
            lease = self._registry.lease(worker, num_prefill_tokens=num_prefill_tokens)
            self._policies.sent(exchange.read, choice)
            exchange.tried.add(worker.worker_id)
            is_last = len(decision.attempts) >= config.max_attempts
            began_at = self._clock()
            attempted = Attempted()
            try:
                attempted = await self._attempts.run(
                    exchange.outgoing,
                    lease,
                    exchange.answer,
                    may_go_elsewhere=partial(self._may_go_elsewhere, exchange, is_last, deadline),
                )
            finally:
                attempt.seconds = self._clock() - began_at
                attempt.outcome, attempt.detail = attempted.outcome, attempted.detail
            if attempted.is_answered:
                self._learn(exchange, attempt, attempted)
                return
            if attempted.outcome == "shutdown" or is_last or self._clock() >= deadline:
                raise _unanswered(attempt, len(decision.attempts))
            for observer in self._observers:
                observer.retried(attempted.outcome)

    async def _choose(self, exchange: _Exchange, deadline: float) -> tuple[Worker, Choice]:
        """A worker that was not asked yet; where there is none, one that was, after a moment. Raises `RefusedError`."""
        registry = self._registry
        while True:
            candidates = self._candidates(exchange, exchange.tried)
            if not candidates and self._candidates(exchange):
                await anyio.sleep(_AGAIN_SECONDS)
                candidates = self._candidates(exchange)
            if candidates:
                began_at = self._clock()
                choice = self._policies.choose(exchange.read, candidates)
                exchange.decision.routing_seconds += self._clock() - began_at
                return next(worker for worker in candidates if worker.worker_id == choice.worker_id), choice
            if not registry.has_any:
                raise no_worker(_NO_WORKERS)
            if exchange.only is not None:
                raise keeper_is_away()
            with anyio.move_on_after(deadline - self._clock()) as scope:
                await registry.wait_for_change()
            if scope.cancelled_caught:
                raise no_worker("none has become healthy in time")

    def _candidates(self, exchange: _Exchange, tried: Collection[WorkerId] = ()) -> list[Worker]:
        return self._registry.candidates(tried, model=exchange.read.body.model, only=exchange.only)

    def _may_go_elsewhere(self, exchange: _Exchange, is_last: bool, deadline: float, status: int) -> bool:
        """Only where there is somebody else; a full queue sends a request elsewhere once."""
        others = self._candidates(exchange, exchange.tried)
        if is_last or self._clock() >= deadline or not others:
            return False
        was_busy = any(attempt.outcome == "busy" for attempt in exchange.decision.attempts)
        return not (status == _BUSY and was_busy)

    def _learn(self, exchange: _Exchange, attempt: Attempt, attempted: Attempted) -> None:
        decision, notes = exchange.decision, attempted.notes
        if attempted.ttft_seconds is not None:
            decision.ttft_seconds = attempt.began_seconds + attempted.ttft_seconds
        if (answer_id := notes.answer_id) is not None:
            self._decisions.name_answer(decision, answer_id)
            if exchange.read.endpoint == "responses":
                self._homes.kept(answer_id, attempt.worker_id)
        if (usage := notes.usage()) is not None:
            decision.num_cached_tokens = usage.num_cached_tokens
            decision.num_generated_tokens = usage.num_generated_tokens


class Policies:
    """The configured policy for prompts, and the least load for everything else. A `WorkerListener`."""

    def __init__(self, name: str, policy: Policy, least_load: Policy) -> None:
        self.name = name
        self._policy = policy
        self._least_load = least_load

    def choose(self, read: ReadRequest, workers: Sequence[Worker]) -> Choice:
        return self._of(read).choose(read.route, [worker.view() for worker in workers])

    def sent(self, read: ReadRequest, choice: Choice) -> None:
        self._of(read).sent(read.route, choice)

    def added(self, worker: Worker) -> None: ...

    def ready(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None:
        for policy in (self._policy, self._least_load):
            policy.removed(worker.worker_id)

    def removed(self, worker: Worker) -> None:
        self.lost(worker)

    def _of(self, read: ReadRequest) -> Policy:
        return self._least_load if read.endpoint == "other" else self._policy


class _Exchange:
    """What belongs to one request while it is forwarded. `only`: where it has to go, as nobody else could answer."""

    def __init__(
        self,
        read: ReadRequest,
        outgoing: Outgoing,
        answer: ClientAnswer,
        decision: Decision,
        arrived_at: float,
        only: WorkerId | None,
    ) -> None:
        self.read = read
        self.outgoing = outgoing
        self.answer = answer
        self.decision = decision
        self.arrived_at = arrived_at
        self.only = only
        self.tried: set[WorkerId] = set()


def _target(scope: Scope) -> str:
    """Path and query as the client wrote them."""
    path = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    text: str = (path + (b"?" + query if query else b"")).decode("latin-1")
    return text


def _client(scope: Scope, headers: Headers, read: ReadRequest) -> str:
    """Who shares the queue with whom: the key and the user it is for, else the address."""
    key = f"{headers.get('authorization') or headers.get('x-api-key', '')}\0{read.body.user}"
    return key if key != "\0" else str((scope.get("client") or [""])[0])


def _unanswered(attempt: Attempt, num_attempts: int) -> RequestError:
    """What the client hears when no worker gave an answer that could be passed on."""
    asked = "" if num_attempts == 1 else f" {num_attempts} times"
    message = f"The request was forwarded{asked} and not answered: {attempt.detail}. Try again."
    match attempt.outcome:
        case "timeout":
            return RequestError(message, status=504, type="server_error", code="worker_timeout")
        case "shutdown":
            return RefusedError("shutting_down", "The router is shutting down.")
        case _:
            return RequestError(
                message,
                status=502,
                type="server_error",
                code="worker_unreachable" if attempt.outcome == "connect_error" else "worker_failed",
                retry_after_seconds=1,
            )
