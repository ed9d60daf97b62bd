"""`/router/workers`: who the workers are and how each is; adding, draining and removing them while the router runs."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.decode import parse_body
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.messages import BreakerState
from pagefall.router.routing import WorkerId
from pagefall.router.subscriber import SubscriptionState, SubscriptionStatus
from pagefall.router.subscriptions import Subscriptions
from pagefall.router.worker_urls import WorkerSpec, worker_spec
from pagefall.router.workers import Origin, Outcome, Worker, WorkerRegistry, WorkerState

_YES: Final = frozenset({"1", "true", "yes"})
_NO: Final = frozenset({"0", "false", "no"})


class AddWorker(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    url: str
    name: str | None = None


class WorkerEvents(msgspec.Struct, frozen=True, kw_only=True):
    """How far the reader of its KV events is: the number of the last one taken, and how often some were missing.

    `store`: the same for workers that share one; None without. `num_device_tokens`: how many its device holds. Both are
    None until it has said so.
    """

    connected: bool
    status: SubscriptionStatus
    last_number: int | None
    num_gaps: int
    last_error: str | None
    store: str | None
    num_device_tokens: int | None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`trouble`: why its last probe failed. `num_ended`: requests it was sent, by how they ended. `events` None: the
    policy needs none.
    """

    name: str
    url: WorkerId
    state: WorkerState
    origin: Origin
    breaker: BreakerState
    trouble: str | None
    models: list[str]
    num_outstanding: int
    num_outstanding_prefill_tokens: int
    prefill_tokens_per_second: float | None
    seconds_per_output: float | None
    num_ended: dict[Outcome, int]
    events: WorkerEvents | None


class WorkersAnswer(msgspec.Struct, frozen=True, kw_only=True):
    workers: list[WorkerStatus]


class WorkerApi:
    """The endpoints."""

    def __init__(
        self,
        registry: WorkerRegistry,
        subscriptions: Subscriptions | None,
        *,
        max_body_bytes: int,
        may_change_workers: bool,
    ) -> None:
        """`may_change_workers` False: not through the API, whoever asks."""
        self._may_change_workers = may_change_workers
        self._registry = registry
        self._subscriptions = subscriptions
        self._max_body_bytes = max_body_bytes

    async def list_or_add(self, request: Request) -> Response:
        """`POST {"url": ..., "name": ...}`; one that is known already is taken back if it was draining."""
        if request.method in ("GET", "HEAD"):
            return json_response(WorkersAnswer(workers=[self._status(w) for w in self._registry.workers]))
        self._check_may_change()
        spec = await parse_body(request, AddWorker, _spec, max_body_bytes=self._max_body_bytes)
        return json_response(self._status(self._registry.add(spec, "api")), status=201)

    async def show_or_remove(self, request: Request) -> Response:
        """`DELETE` lets requests under way end first; with `?now=true` they go elsewhere, or break off."""
        worker = self._worker(request)
        if request.method == "DELETE":
            self._check_may_change()
            self._registry.remove(worker, at_once=_now(request))
        return json_response(self._status(worker))

    async def drain(self, request: Request) -> Response:
        """It gets no more requests, and stays known: adding it again takes it back."""
        self._check_may_change()
        worker = self._worker(request)
        self._registry.drain(worker)
        return json_response(self._status(worker))

    def _check_may_change(self) -> None:
        if not self._may_change_workers:
            raise lends_its_key("change its workers")

    def _status(self, worker: Worker) -> WorkerStatus:
        events = None if self._subscriptions is None else self._subscriptions.state_of(worker.worker_id)
        return worker_status(worker, events)

    def _worker(self, request: Request) -> Worker:
        wanted = request.path_params["worker"]
        worker = self._registry.get(wanted)
        if worker is None:
            known = ", ".join(worker.name for worker in self._registry.workers[:20]) or "none"
            raise RequestError(
                f"No worker {wanted[:200]!r} is known. There are: {known}. Send a name or a URL, encoded.",
                status=404,
                type="not_found_error",
                param="worker",
                code="worker_not_found",
            )
        return worker


def lends_its_key(what: str) -> RequestError:
    """Of a router that has a key for its workers and asks for none itself: whoever adds a worker would be sent it."""
    return RequestError(
        f"This router has a key for its workers and asks for none itself: start it with --admin-api-key to {what}.",
        status=403,
        type="permission_error",
        code="admin_key_required",
    )


def worker_status(worker: Worker, events: SubscriptionState | None) -> WorkerStatus:
    return WorkerStatus(
        name=worker.name,
        url=worker.worker_id,
        state=worker.state,
        origin=worker.origin,
        breaker=worker.breaker.state,
        trouble=worker.trouble,
        models=sorted(worker.models),
        num_outstanding=len(worker.leases),
        num_outstanding_prefill_tokens=worker.num_prefill_tokens,
        prefill_tokens_per_second=worker.speeds.prefill_tokens_per_second,
        seconds_per_output=worker.speeds.seconds_per_output,
        num_ended=dict(worker.num_ended),
        events=None if events is None else _events(events),
    )


def _events(state: SubscriptionState) -> WorkerEvents:
    return WorkerEvents(
        connected=state.is_connected,
        status=state.status,
        last_number=state.last_number,
        num_gaps=state.num_gaps,
        last_error=state.last_error,
        store=state.store,
        num_device_tokens=state.num_device_tokens,
    )


def _spec(body: AddWorker) -> WorkerSpec:
    try:
        return worker_spec(body.url, body.name)
    except ValueError as error:
        param = "name" if "name" in str(error) and "URL" not in str(error) else "url"
        raise RequestError(f"Invalid value for '{param}': {error}.", param=param, code="invalid_value") from error


def _now(request: Request) -> bool:
    for name in request.query_params:
        if name != "now":
            raise RequestError(f"Unknown parameter: '{name}'. The only one is 'now'.", param=name)
    value = request.query_params.get("now", "false").lower()
    if value not in _YES | _NO:
        raise RequestError(f"Invalid value for 'now': {value[:100]!r}. Send true or false.", param="now")
    return value in _YES
