"""What all workers answer together: models, statistics, flushing, and the explanation of one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.access import http_request_id
from pagefall.api.auth import flushes_store
from pagefall.api.decode import read_body
from pagefall.api.errors import ErrorDetail
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.router.decisions import Decision, DecisionLog
from pagefall.router.fan_out import FanOut, Reply
from pagefall.router.gate import no_worker
from pagefall.router.sums import summed, summed_stats
from pagefall.router.upstream import Upstreams
from pagefall.router.worker_api import lends_its_key
from pagefall.router.worker_metrics import merged_metrics
from pagefall.router.workers import Worker, WorkerRegistry

_LOOK_SECONDS: Final = 3.0
"""What is for all workers together waits no longer for one of them. Prometheus gives up after ten."""

_CHANGE_SECONDS: Final = 60.0
"""A store is attached when it has answered, and detached when its last pages are written."""

_NO_STORE: Final = {"cache-control": "no-store"}


class Fleet:
    """The endpoints."""

    def __init__(
        self,
        registry: WorkerRegistry,
        upstreams: Upstreams,
        decisions: DecisionLog,
        *,
        max_body_bytes: int,
        may_change_stores: bool,
    ) -> None:
        """`may_change_stores` False: not through this router, whoever asks."""
        self._registry = registry
        self._one = FanOut(upstreams)
        self._look = FanOut(upstreams, timeout_seconds=_LOOK_SECONDS)
        self._change = FanOut(upstreams, timeout_seconds=_CHANGE_SECONDS)
        self._decisions = decisions
        self._max_body_bytes = max_body_bytes
        self._may_change_stores = may_change_stores

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": await self._models(request)})

    async def model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        for model in await self._models(request):
            if model["id"] == wanted:
                return json_response(model)
        raise RequestError(
            f"The model '{wanted[:200]}' does not exist: no worker serves it.",
            status=404,
            type="not_found_error",
            param="model",
            code="model_not_found",
        )

    async def flush_cache(self, request: Request) -> Response:
        """Every worker's, healthy or not; 503 where one did not do it. `?tiers=` as a worker knows it."""
        if not self._may_change_stores and flushes_store(request.scope):
            raise lends_its_key("flush their stores")
        answering = [worker for worker in self._registry.workers if worker.answers]
        others = [worker for worker in self._registry.workers if not worker.answers]
        replies = await self._ask(request, answering, "POST", fan_out=self._change)
        if replies and all(reply.status is not None and 400 <= reply.status < 500 for reply in replies):
            raise _refusal(replies)
        replies += await self._ask(request, others, "POST")
        documents = [reply.document() for reply in replies if reply.is_success]
        counts = (document.get("num_pages") for document in documents if isinstance(document, dict))
        answer: dict[str, Any] = {"num_pages": summed(counts) or {}, "workers": _by_worker(replies)}
        failed = [reply.worker.name for reply in replies if not reply.is_success]
        if failed:
            answer["error"] = ErrorDetail(
                message=f"Not flushed: {', '.join(failed)}. See 'workers' for why.",
                type="service_unavailable_error",
                code="flush_incomplete",
            )
        return json_response(answer, status=503 if failed else 200)

    async def cache_stats(self, request: Request) -> Response:
        """`workers` has each worker's own document, or its error; the rest is their sum. `?worker=`: that one's own."""
        if "worker" in request.query_params:
            return await self.one_worker(request)
        replies = await self._ask(request, self._ready(), "GET")
        documents = [
            document for reply in replies if reply.is_success and isinstance(document := reply.document(), dict)
        ]
        if not documents:
            raise _refusal(replies)
        answer = {
            "num_workers": len(replies),
            "num_answered": len(documents),
            "states": {worker.name: worker.state for worker in self._registry.workers},
            **summed_stats(documents),
            "workers": _by_worker(replies),
        }
        return json_response(answer, headers=_NO_STORE)

    async def cache_requests(self, request: Request) -> Response:
        """The workers' lists as one, each with its worker; the newest first. `?worker=`: that one's own."""
        if "worker" in request.query_params:
            return await self.one_worker(request)
        replies = await self._ask(request, self._ready(), "GET")
        listed: list[dict[str, Any]] = []
        num_remembered = 0
        for reply in replies:
            document = reply.document() if reply.is_success else None
            if isinstance(document, dict) and isinstance(document.get("requests"), list):
                listed += [{"worker": reply.worker.name, **entry} for entry in document["requests"]]
                num_remembered += document.get("num_remembered", 0)
        if not any(reply.is_success for reply in replies):
            raise _refusal(replies)
        listed.sort(key=lambda entry: entry.get("time", 0), reverse=True)
        limit = request.query_params.get("limit", "50")
        shown = listed[: int(limit)] if limit.isdecimal() else listed
        return json_response({"requests": shown, "num_remembered": num_remembered}, headers=_NO_STORE)

    async def cache_explain(self, request: Request) -> Response:
        """The worker's explanation, and beside it, as `routing`, why it was this worker."""
        decision = self._decisions.get(request.path_params["request_id"])
        served_by = None if decision is None else self._worker_of(decision)
        asked = self._ready() if served_by is None else [served_by]
        replies = await self._ask(request, asked, "GET")
        for reply in replies:
            document = reply.document() if reply.is_success else None
            if isinstance(document, dict):
                return json_response({**document, "worker": reply.worker.name, "routing": decision}, headers=_NO_STORE)
        raise _refusal(replies)

    async def one_worker(self, request: Request) -> Response:
        """The answer of the worker that `?worker=` names, as it is: it is about that one's cache alone."""
        query = request.query_params
        worker = self._registry.get(query.get("worker", ""))
        if worker is None:
            known = ", ".join(worker.name for worker in self._registry.workers[:20]) or "none"
            wanted = f"No worker {query['worker'][:200]!r} is known. " if "worker" in query else ""
            raise RequestError(
                f"{wanted}Say with ?worker=NAME which worker is meant. There are: {known}.",
                param="worker",
                code="invalid_value" if "worker" in query else "worker_required",
            )
        others = urlencode([(name, value) for name, value in query.multi_items() if name != "worker"])
        target = f"{request.url.path}?{others}" if others else request.url.path
        if request.method in ("GET", "HEAD"):
            [reply] = await self._ask(request, [worker], "GET", target=target, fan_out=self._one)
        elif not self._may_change_stores:
            raise lends_its_key("change their stores")
        else:
            body = await read_body(request, self._max_body_bytes)
            [reply] = await self._ask(request, [worker], request.method, target=target, fan_out=self._change, body=body)
        if reply.status is None:
            raise _refusal([reply])
        return _as_it_is(reply)

    async def openapi(self, request: Request) -> Response:
        """A worker's: what it describes is answered here too."""
        replies = await self._ask(request, self._ready()[:1], "GET")
        if not replies[0].is_success:
            raise _refusal(replies)
        return _as_it_is(replies[0])

    async def kept_response(self, request: Request) -> Response:
        """All are asked, since only the worker that made it has it."""
        method = "DELETE" if request.method == "DELETE" else "GET"
        replies = await self._ask(request, self._ready(), method)
        for reply in replies:
            if reply.is_success:
                return _as_it_is(reply)
        raise _refusal(replies)

    async def metrics(self, request: Request) -> str:
        """The workers', of those that answer in time, as one text."""
        asked = [worker for worker in self._registry.workers if worker.has_been_healthy]
        replies = await self._look.ask(asked, "GET", "/metrics", request.headers, http_request_id(request.scope))
        texts = {reply.worker.name: reply.body.decode("utf-8", "replace") for reply in replies if reply.is_success}
        return merged_metrics(texts)

    async def router_explain(self, request: Request) -> Response:
        """The router's own part, by an `x-request-id` or an answer's id."""
        wanted = request.path_params["request_id"]
        decision = self._decisions.get(wanted)
        if decision is None:
            raise RequestError(
                f"No request {wanted[:200]!r} is known: send its x-request-id or the 'id' of its answer. The last "
                "ones are remembered, as many as --explain-max-requests says.",
                status=404,
                type="not_found_error",
                param="request_id",
                code="request_not_found",
            )
        return json_response(decision, headers=_NO_STORE)

    def _worker_of(self, decision: Decision) -> Worker | None:
        return None if decision.worker_id is None else self._registry.get(decision.worker_id)

    def _ready(self) -> Sequence[Worker]:
        """Raises `RefusedError` where there is none."""
        ready = [worker for worker in self._registry.workers if worker.answers]
        if not ready:
            raise no_worker("none is healthy" if self._registry.workers else "none is known")
        return ready

    async def _models(self, request: Request) -> list[dict[str, Any]]:
        replies = await self._ask(request, self._ready(), "GET", target="/v1/models")
        models: dict[str, dict[str, Any]] = {}
        for reply in replies:
            document = reply.document() if reply.is_success else None
            for model in document.get("data", ()) if isinstance(document, dict) else ():
                models.setdefault(model["id"], model)
        if not any(reply.is_success for reply in replies):
            raise _refusal(replies)
        return list(models.values())

    async def _ask(
        self,
        request: Request,
        workers: Sequence[Worker],
        method: str,
        *,
        target: str | None = None,
        fan_out: FanOut | None = None,
        body: bytes = b"",
    ) -> list[Reply]:
        if target is None:
            query = request.url.query
            path = (request.scope.get("raw_path") or request.url.path.encode()).decode("latin-1")
            target = f"{path}?{query}" if query else path
        fan_out = fan_out or self._look
        request_id = http_request_id(request.scope)
        return await fan_out.ask(workers, method, target, request.headers, request_id, body=body)


def _as_it_is(reply: Reply) -> Response:
    headers = {**_NO_STORE, "content-type": "application/json"}
    return Response(reply.body, status_code=reply.status or 502, headers=headers)


def _by_worker(replies: Sequence[Reply]) -> dict[str, Any]:
    return {reply.worker.name: _told(reply) for reply in replies}


def _told(reply: Reply) -> Any:
    if reply.status is None:
        return {"error": {"message": reply.error}}
    document = reply.document()
    return {"status": reply.status} if document is None else document


def _refusal(replies: Sequence[Reply]) -> RequestError:
    """A worker's own refusal, its status and words; else that nobody answered."""
    for reply in replies:
        if reply.status is not None:
            try:
                error = msgspec.json.decode(reply.body, type=_Refusal).error
            except msgspec.MsgspecError:
                continue
            return RequestError(error.message, status=reply.status, param=error.param, code=error.code)
    named = "; ".join(f"{reply.worker.name}: {reply.error or f'status {reply.status}'}" for reply in replies[:5])
    return no_worker(named or "none is known")


class _RefusalDetail(msgspec.Struct):
    message: str = "The worker refused."
    param: str | None = None
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _RefusalDetail
