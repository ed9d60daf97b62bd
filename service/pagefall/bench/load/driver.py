"""Sends the sessions of a workload to one server, in a closed or an open loop."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup

from pagefall.bench.load.ledger import PrefixLedger
from pagefall.bench.load.samples import Answer, Fault, RequestFailedError, RequestSample, answered, failed
from pagefall.bench.load.turns import Piece, Preparation, Session, Turn

_MAX_FAILURES_IN_A_ROW: Final = 32


class ClosedLoop(msgspec.Struct, frozen=True, kw_only=True):
    """As many requests as `concurrency` at any time: one ends, the next is sent."""

    concurrency: int


class OpenLoop(msgspec.Struct, frozen=True, kw_only=True):
    """Requests are sent when they are due, whatever the server does; `max_concurrency` holds them back, None never."""

    arrivals: Iterator[float]
    max_concurrency: int | None = None


Loop = ClosedLoop | OpenLoop


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a run before its workload does: requests sent, seconds of sending, sessions begun at a time."""

    num_requests: int | None = None
    seconds: float | None = None
    active_sessions: int | None = None


class Server(Protocol):
    """What the driver needs of a server."""

    @property
    def num_template_tokens(self) -> int:
        """What its template adds to every prompt."""

    def body(self, turn: Turn, answers: Mapping[int, str]) -> bytes:
        """The request, ready to be sent. `answers`: real ones by number of turn."""

    async def stream(self, body: bytes, *, on_token: Callable[[], object]) -> Answer:
        """Raises `RequestFailedError`."""

    async def prepare(self, preparation: Preparation) -> None:
        """Raises `PagefallError`: the run cannot go on."""


class _Active:
    """A session that has begun, and the number of its next turn."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.next = 0
        self.answers: dict[int, str] = {}

    @property
    def turn(self) -> Turn:
        return self.session.turns[self.next]

    @property
    def is_over(self) -> bool:
        return self.next == len(self.session.turns)


class Driver:
    """One run. Samples are there as soon as their requests are over, so that a run that is cut off has left them."""

    def __init__(
        self,
        server: Server,
        sessions: Iterator[Session],
        loop: Loop,
        limits: Limits,
        *,
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_change` is called when a request is sent, at its first token and when it is over."""
        self.samples: list[RequestSample] = []
        self.num_sent = 0
        self.num_streaming = 0
        self.started_at = 0.0
        self.note: str | None = None
        self._server = server
        self._sessions = sessions
        self._loop = loop
        self._limits = limits
        self._on_change = on_change
        self._ledger = PrefixLedger()
        self._ready: deque[_Active] = deque()
        self._thinking: list[tuple[float, int, _Active]] = []
        self._order = itertools.count()
        self._num_active = 0
        self._num_taken = 0
        self._num_failed_in_a_row = 0
        self._changed = anyio.Event()

    @property
    def num_running(self) -> int:
        return self.num_sent - len(self.samples)

    @property
    def seconds(self) -> float:
        """From the start to the last end so far."""
        return max((sample.ended_at for sample in self.samples), default=0.0)

    async def run(self) -> None:
        """Until all is sent and answered. Raises `PagefallError` where the server cannot be prepared for a turn."""
        self.started_at = anyio.current_time()
        try:
            async with anyio.create_task_group() as group:
                match self._loop:
                    case ClosedLoop(concurrency=concurrency):
                        for _ in range(concurrency):
                            group.start_soon(self._work)
                    case OpenLoop():
                        await self._dispatch(self._loop, group)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _dispatch(self, loop: OpenLoop, group: TaskGroup) -> None:
        places = None if loop.max_concurrency is None else anyio.Semaphore(loop.max_concurrency)
        for due_at in loop.arrivals:
            active = await self._next()
            if active is None:
                return
            body = self._body(active)
            if not await self._sleep_until(due_at):
                return
            if places is not None:
                await places.acquire()
            if self._is_late():
                return
            group.start_soon(self._send_and_free, active, body, due_at, places)

    async def _work(self) -> None:
        while (active := await self._next()) is not None:
            await self._send(active, self._body(active), None)

    async def _send_and_free(self, active: _Active, body: bytes, due_at: float, places: anyio.Semaphore | None) -> None:
        try:
            await self._send(active, body, due_at)
        finally:
            if places is not None:
                places.release()

    def _body(self, active: _Active) -> bytes:
        return self._server.body(active.turn, active.answers)

    async def _send(self, active: _Active, body: bytes, due_at: float | None) -> None:
        turn = active.turn
        if turn.preparation is not None:
            await self._server.prepare(turn.preparation)
        num_seen = self._ledger.see(turn.pieces)
        self.num_sent += 1
        is_streaming = False

        def note_token() -> None:
            nonlocal is_streaming
            is_streaming = True
            self.num_streaming += 1
            self._on_change()

        self._on_change()
        sent_at = self._now()
        try:
            answer = await self._server.stream(body, on_token=note_token)
        except RequestFailedError as error:
            sample = failed(turn, error.fault, sent_at=sent_at, ended_at=self._now(), due_at=due_at)
        else:
            sample = answered(
                turn,
                answer,
                num_seen_tokens=num_seen,
                num_template_tokens=self._server.num_template_tokens,
                started_at=self.started_at,
                due_at=due_at,
            )
            if turn.answer_key is not None:
                active.answers[active.next] = answer.text
                said = Piece(key=turn.answer_key, num_tokens=turn.output_tokens)
                self._ledger.see((*turn.pieces, said))
        self.num_streaming -= is_streaming
        self._end(active, sample)

    def _end(self, active: _Active, sample: RequestSample) -> None:
        self.samples.append(sample)
        self._give_up_on(sample.fault)
        active.next += 1
        if active.is_over:
            self._num_active -= 1
        elif active.turn.think_seconds:
            ready_at = anyio.current_time() + active.turn.think_seconds
            heapq.heappush(self._thinking, (ready_at, next(self._order), active))
        else:
            self._ready.append(active)
        self._wake()
        self._on_change()

    def _give_up_on(self, fault: Fault | None) -> None:
        self._num_failed_in_a_row = 0 if fault is None else self._num_failed_in_a_row + 1
        if fault is not None and self._num_failed_in_a_row >= _MAX_FAILURES_IN_A_ROW and self.note is None:
            self.note = f"given up after {self._num_failed_in_a_row} failures in a row, the last: {fault.message}"

    async def _next(self) -> _Active | None:
        """The next session whose turn may be sent, new ones first; None: nothing is left to send, or it is time."""
        while not self._is_over():
            active = self._take()
            if active is not None:
                self._num_taken += 1
                return active
            if self._num_active == 0:
                return None
            await self._change()
        self._wake()  # others wait for what will not come
        return None

    def _is_over(self) -> bool:
        num_requests = self._limits.num_requests
        return (
            self.note is not None or self._is_late() or (num_requests is not None and self._num_taken >= num_requests)
        )

    def _is_late(self) -> bool:
        return self._limits.seconds is not None and self._now() >= self._limits.seconds

    def _take(self) -> _Active | None:
        now = anyio.current_time()
        while self._thinking and self._thinking[0][0] <= now:
            self._ready.append(heapq.heappop(self._thinking)[2])
        limit = self._limits.active_sessions
        if limit is None or self._num_active < limit:
            session = next(self._sessions, None)
            if session is not None:
                self._num_active += 1
                return _Active(session)
        return self._ready.popleft() if self._ready else None

    async def _change(self) -> None:
        """Waits until something has ended, a pause for thought included, or sending is over."""
        times = [self._thinking[0][0]] if self._thinking else []
        if self._limits.seconds is not None:
            times.append(self.started_at + self._limits.seconds)
        with anyio.CancelScope(deadline=min(times, default=math.inf)):
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _sleep_until(self, due_at: float) -> bool:
        """Whether there is still time to send then."""
        if self._limits.seconds is not None and due_at >= self._limits.seconds:
            await anyio.sleep_until(self.started_at + self._limits.seconds)
            return False
        await anyio.sleep_until(self.started_at + due_at)
        return True

    def _now(self) -> float:
        return anyio.current_time() - self.started_at
