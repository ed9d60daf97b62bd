"""One request at one worker: sent, and its answer passed on as it arrives, or the reason why another may be asked."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
import msgspec

from pagefall.errors import RequestError
from pagefall.router.answers import AnswerNotes, EventCutter
from pagefall.router.client_answer import ClientAnswer, is_event_stream
from pagefall.router.config import ForwardConfig
from pagefall.router.connections import RawHeaders
from pagefall.router.upstream import (
    UnreachableError,
    UpstreamAnswer,
    UpstreamError,
    Upstreams,
    returned_headers,
)
from pagefall.router.workers import Lease, Outcome, WorkerRegistry

_log = logging.getLogger("pagefall.router")

_ELSEWHERE: Final = frozenset({502, 503, 504})
"""What says nothing about the request: another worker may answer it."""

_NOT_IMPLEMENTED: Final = 501
"""The one 5xx that is the request's fault."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request as every worker is sent it. `is_stream`: its answer is to come in pieces."""

    method: str
    target: str
    headers: RawHeaders
    body: bytes
    is_stream: bool


class Attempted(msgspec.Struct, kw_only=True):
    """`is_answered`: the client has an answer, whole or broken off, and nothing else may follow.

    `ttft_seconds` counts from sending the request to the first bytes of its answer's body.
    """

    outcome: Outcome = "client_gone"
    is_answered: bool = False
    detail: str | None = None
    ttft_seconds: float | None = None
    notes: AnswerNotes = msgspec.field(default_factory=AnswerNotes)


@dataclass(frozen=True)
class Attempts:
    upstreams: Upstreams
    registry: WorkerRegistry
    config: ForwardConfig
    clock: Callable[[], float]

    async def run(
        self, request: Outgoing, lease: Lease, answer: ClientAnswer, *, may_go_elsewhere: Callable[[int], bool]
    ) -> Attempted:
        """Ends `lease`, whatever happens. `may_go_elsewhere`, asked with the worker's status where that is one of the
        retriable ones, says whether its answer is to be left unread; else that is the client's answer.
        """
        attempted = Attempted()
        passage = _Passage(self, request, lease, answer, attempted, may_go_elsewhere)
        try:
            await passage.run()
        finally:
            lease.end(attempted.outcome, is_failure=passage.status != _NOT_IMPLEMENTED)
        return attempted


class _Passage:
    """The state of one `Attempts.run`."""

    def __init__(
        self,
        attempts: Attempts,
        request: Outgoing,
        lease: Lease,
        answer: ClientAnswer,
        attempted: Attempted,
        may_go_elsewhere: Callable[[int], bool],
    ) -> None:
        self._upstreams = attempts.upstreams
        self._registry = attempts.registry
        self._config = attempts.config
        self._clock = attempts.clock
        self._request = request
        self._lease = lease
        self._answer = answer
        self._attempted = attempted
        self._may_go_elsewhere = may_go_elsewhere
        self._is_event_stream = False
        self.status: int | None = None

    async def run(self) -> None:
        failure: Outcome | None = None
        try:
            with self._lease.scope as scope:
                scope.deadline = asyncio.get_running_loop().time() + self._config.first_byte_timeout
                await self._forward(scope)
            if scope.cancelled_caught:
                failure, detail = self._why_cancelled()
        except UnreachableError as error:
            failure, detail = "connect_error", str(error)
            if error.is_refused:
                self._registry.connection_refused(self._lease.worker)
        except UpstreamError as error:
            failure, detail = "reset", str(error)
        if failure is not None:
            await self._failed(failure, detail)

    async def _forward(self, scope: anyio.CancelScope) -> None:
        request, lease = self._request, self._lease
        sent_at = self._clock()
        timer = self._expect_prefill()
        try:
            response = await self._upstreams.send(
                lease.worker.worker_id,
                request.method,
                request.target,
                self._upstreams.authorized(request.headers),
                request.body,
            )
            try:
                self.status = response.status
                outcome = _outcome(response)
                if self.status in _ELSEWHERE and self._may_go_elsewhere(self.status):
                    self._attempted.outcome = outcome
                    self._attempted.detail = f"status {self.status}"
                    return
                await self._pass_on(response, scope, sent_at)
                self._attempted.outcome = outcome
                self._attempted.is_answered = True
            finally:
                response.close()
        finally:
            if timer is not None:
                timer.cancel()

    async def _pass_on(self, response: UpstreamAnswer, scope: anyio.CancelScope, sent_at: float) -> None:
        """The first bytes of the body begin the client's answer, or its end where it has none."""
        raw = response.headers
        worker = self._lease.worker
        more = {} if self._config.disable_worker_header else {b"x-pagefall-worker": worker.name.encode()}
        notes, answer = self._attempted.notes, self._answer
        self._is_event_stream = is_event_stream(raw)
        cutter = EventCutter() if self._is_event_stream else None
        first_at = last_at = None
        async for chunk in response.body():
            last_at = self._clock()
            if first_at is None:
                first_at = last_at
                self._first_byte(first_at - sent_at, is_success=response.status < 400)
            notes.saw(chunk)
            data = chunk if cutter is None else cutter.feed(chunk)
            if data:
                scope.deadline = math.inf  # the client may take its time
                if not answer.has_begun:
                    await answer.begin(response.status, returned_headers(raw, more))
                await answer.body(data)
            scope.deadline = asyncio.get_running_loop().time() + self._config.idle_timeout
        scope.deadline = math.inf
        if not answer.has_begun:
            await answer.begin(response.status, returned_headers(raw, more))
        if cutter is not None and (rest := cutter.rest()):
            await answer.body(rest)
        await answer.finish()
        if first_at is not None and last_at is not None and self._is_event_stream:
            usage = notes.usage()
            num_outputs = (usage and usage.num_generated_tokens) or notes.num_events
            worker.speeds.outputs(num_outputs=num_outputs - 1, seconds=last_at - first_at)

    def _first_byte(self, seconds: float, *, is_success: bool) -> None:
        self._lease.first_byte()
        self._attempted.ttft_seconds = seconds
        if is_success and self._is_event_stream:
            self._lease.worker.speeds.first_token(num_tokens=self._lease.num_tokens_ahead, seconds=seconds)

    def _expect_prefill(self) -> asyncio.TimerHandle | None:
        """An answer that does not stream shows nothing when its prompt is computed: that is estimated."""
        speed = self._lease.worker.speeds.prefill_tokens_per_second
        if self._request.is_stream or speed is None:
            return None
        seconds = self._lease.num_tokens_ahead / speed
        return asyncio.get_running_loop().call_later(seconds, self._lease.prefilled)

    def _why_cancelled(self) -> tuple[Outcome, str]:
        match self._lease.abandoned:
            case "shutdown":
                return "shutdown", "the router shuts down"
            case "removed":
                return "worker_lost", "the worker was removed"
            case "worker_lost":
                return "worker_lost", "the worker's health probes failed"
            case None if self._answer.has_begun:
                return "timeout", f"nothing came for {self._config.idle_timeout:g} seconds"
            case None:
                return "timeout", f"no answer in {self._config.first_byte_timeout:g} seconds"

    async def _failed(self, failure: Outcome, detail: str) -> None:
        """Before the client's answer has begun, another worker may be asked. A stream that had said its last word is
        whole, whatever became of its connection.
        """
        attempted, answer = self._attempted, self._answer
        attempted.outcome, attempted.detail = failure, detail
        if not answer.has_begun:
            return
        attempted.is_answered = True
        if self._is_event_stream and attempted.notes.is_done:
            attempted.outcome = "ok"
            await answer.finish()
            return
        if failure != "shutdown":
            attempted.outcome = "broken"
        _log.warning("the answer of worker %s broke off: %s", self._lease.worker.name, detail)
        error = RequestError(
            f"The answer broke off: {detail}. What was sent so far is incomplete.",
            status=502,
            type="server_error",
            code="answer_broken",
        )
        await answer.break_off(error, is_stream=self._is_event_stream, num_events=attempted.notes.num_events)


def _outcome(response: UpstreamAnswer) -> Outcome:
    if response.status < 400:
        return "ok"
    if response.status < 500:
        return "client_error"
    if response.status == 503 and any(name == b"retry-after" for name, _ in response.headers):
        return "busy"
    return "server_error"
