"""`GET /cache/diagnose`: what the traffic of late says about the hit rate."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.insight.diagnosis.diagnose import diagnose
from pagefall.insight.diagnosis.report import Diagnosis
from pagefall.insight.diagnosis.served import traffic_of
from pagefall.insight.records import RequestRecord
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import ControllerStats, RequestId, SchedulerStats

_PARAMETERS: Final = ("last", "seconds")

_LEAST_PAUSE_SECONDS: Final = 5.0
_LEAST_PAUSE: Final = 10
"""Times as long as the last diagnosis took: so at most a tenth of the interpreter's time goes into them."""


class _Question(NamedTuple):
    last: int | None
    seconds: float | None


class _Answer(NamedTuple):
    """`request_ids` are those of all requests that were looked at. `made_at` is of the traffic log's clock."""

    question: _Question
    request_ids: tuple[RequestId, ...]
    diagnosis: Diagnosis
    made_at: float


class Diagnose:
    """The endpoint. It makes one diagnosis at a time, in a thread, and then none for a while: that takes up to a few
    seconds of a core, in which requests wait for the interpreter.
    """

    def __init__(self, engine: Engine, *, page_size: int, redact_prompts: bool) -> None:
        self._engine = engine
        self._page_size = page_size
        self._redact_prompts = redact_prompts
        self._is_busy = False
        self._latest: _Answer | None = None
        self._next_at = -math.inf

    async def show(self, request: Request) -> Response:
        """`?last=N` requests, or those of the last `?seconds=S`; without either all that are remembered.

        The latest answer again, with its age, for the same question about the same requests, or so soon after it. 503
        while another diagnosis is made, and for another question so soon.
        """
        question = _query(request.query_params)
        traffic = self._engine.traffic
        if not traffic.config.explain_max_requests:
            raise RequestError(
                "This server remembers no requests. Start it with --explain-max-requests above 0.",
                code="no_requests_remembered",
            )
        records, now = _settled(traffic, question), traffic.now()
        request_ids = tuple(record.request_id for record in records)
        latest = self._latest
        if latest is not None and latest.question == question:
            is_fresh = now < self._next_at or latest.request_ids == request_ids
            if is_fresh:
                return _shown(latest, now)
        if self._is_busy:
            raise RequestError(
                "Another diagnosis is being made. Try again when it has ended.",
                status=503,
                type="service_unavailable_error",
                code="diagnosis_under_way",
                retry_after_seconds=2,
            )
        if now < self._next_at:
            raise _too_soon(self._next_at - now)
        stats, controller = self._engine.stats(), self._engine.controller_stats()
        self._is_busy = True
        try:
            diagnosis = await anyio.to_thread.run_sync(
                self._diagnose, records, stats, controller, limiter=anyio.CapacityLimiter(1)
            )
        finally:
            self._is_busy = False
            ended = traffic.now()
            self._next_at = ended + max(_LEAST_PAUSE_SECONDS, _LEAST_PAUSE * (ended - now))
        self._latest = _Answer(question, request_ids, diagnosis, ended)
        return _shown(self._latest, ended)

    def _diagnose(
        self, records: list[RequestRecord], stats: SchedulerStats, controller: ControllerStats | None
    ) -> Diagnosis:
        """In a thread. What it reads of settled records does not change any more."""
        traffic = traffic_of(records, stats, controller, page_size=self._page_size)
        return diagnose(traffic, show_text=not self._redact_prompts)


def _shown(answer: _Answer, now: float) -> Response:
    diagnosis = replace(answer.diagnosis, age_seconds=round(now - answer.made_at, 3))
    return json_response(diagnosis, headers={"cache-control": "no-store"})


def _too_soon(seconds: float) -> RequestError:
    wait = math.ceil(seconds)
    return RequestError(
        f"A diagnosis of other requests was made just now, and each costs the server's time. Try again in {wait} s.",
        status=503,
        type="service_unavailable_error",
        code="diagnosis_too_soon",
        retry_after_seconds=wait,
    )


def _settled(traffic: TrafficLog, question: _Question) -> list[RequestRecord]:
    last, seconds = question
    earliest = -math.inf if seconds is None else traffic.now() - seconds
    records = [
        record
        for record in itertools.chain(traffic.ended(), traffic.live())
        if record.report is not None and record.began_at >= earliest
    ]
    return records if last is None else heapq.nlargest(last, records, key=lambda record: record.began_at)


def _query(query: QueryParams) -> _Question:
    """Raises `RequestError` for anything but a `last` or a `seconds` above 0."""
    for name in query:
        if name not in _PARAMETERS:
            raise RequestError(f"Unknown parameter: '{name}'. Known are 'last' and 'seconds'.", param=name)
    last, seconds = query.get("last"), query.get("seconds")
    if last is not None and not (last.isascii() and last.isdecimal() and int(last[:18]) > 0):
        raise RequestError(
            f"Invalid value for 'last': {last[:100]!r} is not a whole number above 0.",
            param="last",
            code="invalid_value",
        )
    try:
        number = None if seconds is None else float(seconds)
    except ValueError:
        number = math.nan
    if number is not None and not 0 < number < math.inf:
        raise RequestError(
            f"Invalid value for 'seconds': {(seconds or '')[:100]!r} is not a number above 0.",
            param="seconds",
            code="invalid_value",
        )
    return _Question(None if last is None else int(last[:18]), number)
