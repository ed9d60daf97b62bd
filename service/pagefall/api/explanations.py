"""`/cache/requests` and `/cache/explain/ID`: what became of single prompts, live ones and the last that ended."""

from __future__ import annotations

import heapq
from typing import Final, Literal, get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.api.wire_completions import prompt_request_id
from pagefall.errors import RequestError
from pagefall.insight.explanation import RequestState, num_cached_tokens, state_of
from pagefall.insight.records import AbortReason, RequestRecord
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import FinishReason, MissReason, RequestId, TokenSource

_DEFAULT_LIMIT: Final = 50
_MAX_LIMIT: Final = 1000
_MAX_NAMED: Final = 10
"""So many ids are named where one stands for several requests."""

_Wanted = Literal["live", "ended"]


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are as in `insight.explanation.Explanation`. `first_miss` is the reason of the first page that was not
    cached, but for the last page of a prompt, which never is; None where there is no other.
    """

    request_id: RequestId
    http_request_id: str | None
    time: float
    state: RequestState
    finish_reason: FinishReason | None
    abort_reason: AbortReason | None
    is_settled: bool
    num_prompt_tokens: int
    num_cached_tokens: int
    num_known_tokens: int
    num_generated_tokens: int
    num_tokens_by_source: dict[TokenSource, int]
    ttft_seconds: float | None
    total_seconds: float | None
    first_miss: MissReason | None
    divergence_token_index: int | None


class RequestsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The newest first. `num_remembered`: how many could be listed, without a limit."""

    requests: list[RequestSummary]
    num_remembered: int


class Explanations:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """`?limit=50&state=live|ended`."""
        limit, state = _query(request.query_params)
        traffic = self._engine.traffic
        records = [*(() if state == "ended" else traffic.live()), *(() if state == "live" else traffic.ended())]
        newest = heapq.nlargest(limit, records, key=lambda record: record.began_at)
        answer = RequestsAnswer(requests=[_summary(record) for record in newest], num_remembered=len(records))
        return json_response(answer, headers={"cache-control": "no-store"})

    async def one(self, request: Request) -> Response:
        """The id is an answer's, or the `x-request-id` of a request."""
        record = _find(request.path_params["request_id"], self._engine.traffic)
        return json_response(await self._engine.explain(record), headers={"cache-control": "no-store"})


def _find(wanted: str, traffic: TrafficLog) -> RequestRecord:
    """Raises `RequestError`: 404 where nothing is known by that id, 409 where several requests are."""
    record = traffic.get(RequestId(wanted))
    if record is not None:
        return record
    records = traffic.of_http_request(wanted) or _of_several_prompts(wanted, traffic)
    if len(records) == 1:
        return records[0]
    if records:
        names = ", ".join(record.request_id for record in records[-_MAX_NAMED:])
        more = "" if len(records) <= _MAX_NAMED else f" (the last {_MAX_NAMED} of {len(records)})"
        raise RequestError(
            f"{wanted[:200]!r} stands for several requests. Ask for one of them: {names}{more}.",
            status=409,
            param="request_id",
            code="ambiguous_request_id",
        )
    raise _unknown(wanted, traffic)


def _of_several_prompts(answer_id: str, traffic: TrafficLog) -> tuple[RequestRecord, ...]:
    """Each prompt of a completion is a request; the first of them may be forgotten already."""
    found: list[RequestRecord] = []
    for index in range(_MAX_LIMIT):
        record = traffic.get(prompt_request_id(answer_id, index))
        if record is not None:
            found.append(record)
    return tuple(found)


def _unknown(wanted: str, traffic: TrafficLog) -> RequestError:
    config = traffic.config
    if not config.explain_max_requests:
        memory = "This server forgets requests when they end: start it with --explain-max-requests above 0."
    else:
        memory = (
            f"Requests that live are known, and the last {config.explain_max_requests} that ended, while their prompts "
            f"have {config.explain_max_tokens} tokens together (--explain-max-requests, --explain-max-tokens). "
            "GET /cache/requests lists them."
        )
    return RequestError(
        f"No request {wanted[:200]!r} is known: send the 'id' of an answer, or an x-request-id. {memory}",
        status=404,
        type="not_found_error",
        param="request_id",
        code="request_not_found",
    )


def _summary(record: RequestRecord) -> RequestSummary:
    report = record.report
    misses = () if report is None else report.misses
    return RequestSummary(
        request_id=record.request_id,
        http_request_id=record.http_request_id,
        time=record.arrived_at,
        state=state_of(record),
        finish_reason=record.finish_reason,
        abort_reason=record.abort_reason,
        is_settled=report is not None,
        num_prompt_tokens=record.num_prompt_tokens,
        num_cached_tokens=0 if report is None else num_cached_tokens(report.num_tokens_by_source),
        num_known_tokens=0 if report is None else report.num_known_tokens,
        num_generated_tokens=record.num_generated_tokens,
        num_tokens_by_source={} if report is None else report.num_tokens_by_source,
        ttft_seconds=record.ttft_seconds,
        total_seconds=record.total_seconds,
        first_miss=next((miss.reason for miss in misses if miss.reason != "page_tail"), None),
        divergence_token_index=None if report is None or report.divergence is None else report.divergence.token_index,
    )


def _query(query: QueryParams) -> tuple[int, _Wanted | None]:
    """Raises `RequestError` for what cannot be used, and for any other parameter: it was meant to matter."""
    for name in query:
        if name not in ("limit", "state"):
            raise RequestError(f"Unknown parameter: '{name}'. There are 'limit' and 'state'.", param=name)
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_LIMIT):
        raise RequestError(
            f"Invalid value for 'limit': {limit[:100]!r}. Send a whole number from 1 to {_MAX_LIMIT}.",
            param="limit",
            code="invalid_value",
        )
    state = query.get("state")
    for known in get_args(_Wanted):
        if state == known:
            return int(limit), known
    if state is None:
        return int(limit), None
    raise RequestError(
        f"Invalid value for 'state': {state[:100]!r}. Send 'live' or 'ended', or leave it out for both.",
        param="state",
        code="invalid_value",
    )
