"""The router put together: which path is answered by what, and which tasks run beside it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pagefall.api.access import AccessMiddleware
from pagefall.api.auth import ApiKeyMiddleware
from pagefall.api.console import Console
from pagefall.api.cors import cors
from pagefall.api.errors import on_http_exception, on_request_error
from pagefall.api.json_response import json_response
from pagefall.api.same_origin import same_origin
from pagefall.errors import ConfigError, RequestError
from pagefall.model.embedded_file import EMBEDDED_NAME
from pagefall.router.attempts import Attempts
from pagefall.router.config import RouterConfig, RoutingConfig
from pagefall.router.decisions import DecisionLog
from pagefall.router.fan_out import FanOut
from pagefall.router.fleet import Fleet
from pagefall.router.gate import Gate, no_worker
from pagefall.router.health import HealthChecks
from pagefall.router.index import PrefixIndex
from pagefall.router.metrics import RouterMetrics
from pagefall.router.policies import make_policy
from pagefall.router.prompts import Encoder, PromptReader, endpoint_of
from pagefall.router.proxy import DecisionObserver, Policies, Proxy
from pagefall.router.response_homes import ResponseHomes
from pagefall.router.subscriptions import Subscriptions
from pagefall.router.upstream import Upstreams
from pagefall.router.worker_api import WorkerApi
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import Worker, WorkerRegistry
from pagefall.router.workers_file import WorkersFile

_FORWARDED: Final = ("/v1/{rest:path}", "/tokenize", "/detokenize")

_PATIENCE_SECONDS: Final = 5.0
"""How long a request waits for the one worker that can answer it, at most."""

_POSTED: Final = ("/v1/messages/count_tokens", "/v1/responses/input_tokens")

_OF_ONE_WORKER: Final = ("/cache/diagnose", "/cache/tree")


class Router:
    """`app` answers while `running` is entered."""

    def __init__(
        self,
        config: RouterConfig,
        encoder: Encoder | None,
        *,
        observers: Sequence[DecisionObserver] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`encoder` None: prompts are routed as text. Raises `ConfigError` for workers that cannot be."""
        forward, http = config.forward, config.http
        self._config = config
        self._is_stopping = False
        self.registry = registry = WorkerRegistry(config.workers, clock=clock)
        self.gate = Gate(
            max_concurrent=forward.max_concurrent_requests,
            max_queued=forward.max_queued_requests,
            timeout_seconds=forward.queue_timeout,
            is_open=lambda: registry.has_ready,
        )
        self.upstreams = Upstreams(
            connect_timeout=forward.connect_timeout, worker_api_key=config.workers.worker_api_key
        )
        self.health = HealthChecks(registry, self.upstreams, config.workers)
        index = PrefixIndex()
        self.subscriptions = (
            Subscriptions(
                registry,
                index,
                worker_api_key=config.workers.worker_api_key,
                models=None if encoder is None else _tokenised_models(config.routing),
            )
            if config.routing.policy == "cache_aware"
            else None
        )
        policies = Policies(
            config.routing.policy, make_policy(config.routing.policy, index=index), make_policy("least_load")
        )
        self.decisions = DecisionLog(config.telling.explain_max_requests)
        homes = ResponseHomes(
            registry,
            FanOut(self.upstreams),
            patience_seconds=min(forward.queue_timeout, _PATIENCE_SECONDS),
            clock=clock,
        )
        self.metrics = RouterMetrics(registry, self.gate, self.subscriptions, policy=policies.name)
        proxy = Proxy(
            registry,
            self.gate,
            Attempts(self.upstreams, registry, forward, clock),
            PromptReader(encoder, model=config.routing.served_model_name),
            policies,
            self.decisions,
            homes,
            forward,
            max_body_bytes=http.max_body_bytes,
            observers=(self.metrics, *observers),
            clock=clock,
        )
        for listener in (self.upstreams, policies, _GateKeeper(self.gate), self.health, self.subscriptions, homes):
            if listener is not None:
                registry.listen(listener)
        self.app = self._create_app(proxy)
        self._file = None if config.workers.workers_file is None else WorkersFile(config.workers.workers_file, registry)
        self._add_workers()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Probes, events and the watched file, for as long as it is entered."""
        async with self.upstreams, anyio.create_task_group() as group:
            group.start_soon(self.health.run)
            if self.subscriptions is not None:
                group.start_soon(self.subscriptions.run)
            if self._file is not None:
                group.start_soon(self._file.watch)
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    def stop_accepting(self) -> None:
        """Not ready any more: what waits is refused, what is under way goes on."""
        self._is_stopping = True
        self.gate.close()

    def abort_all(self) -> None:
        """What is still under way ends: streams with an error event, all else with 503."""
        self.registry.abandon_all("shutdown")

    def _add_workers(self) -> None:
        for url in self._config.workers.worker_urls:
            try:
                self.registry.add(worker_spec(url), "flag")
            except (ValueError, RequestError) as error:
                raise ConfigError(f"--worker-urls: {error}") from error
        if self._file is not None:
            self._file.read_first()

    def _create_app(self, proxy: Proxy) -> Starlette:
        http = self._config.http
        # Where nobody needs a key, the workers' own must not be lent to everybody. One that was made up for this
        # process's own workers opens nothing elsewhere.
        has_workers_key = self._config.workers.worker_api_key is not None and not self._config.owns_workers
        lends_key = http.admin_api_key is None and has_workers_key
        self._fleet = fleet = Fleet(
            self.registry,
            self.upstreams,
            self.decisions,
            max_body_bytes=http.max_body_bytes,
            may_change_stores=not lends_key,
        )
        console = Console("Pagefall routes to its workers here over the OpenAI API")
        workers = WorkerApi(
            self.registry,
            self.subscriptions,
            max_body_bytes=http.max_body_bytes,
            may_change_workers=not lends_key,
        )
        middleware = [Middleware(AccessMiddleware)]
        if http.cors_origins is not None:
            middleware.append(cors(http.cors_origins))
        middleware.append(same_origin(http.cors_origins))
        if http.api_key is not None or http.admin_api_key is not None:
            middleware.append(Middleware(ApiKeyMiddleware, api_key=http.api_key, admin_api_key=http.admin_api_key))
        app = Starlette(
            routes=[
                Route("/v1/models", fleet.models),
                Route("/v1/models/{model:path}", fleet.model),
                *(Route(path, proxy, methods=["POST"]) for path in _FORWARDED),
                Route("/v1/responses/{rest:path}", fleet.kept_response, methods=["GET", "DELETE"]),
                Route("/v1/{rest:path}", _not_here),
                Route("/flush_cache", fleet.flush_cache, methods=["GET", "POST"]),
                Route("/cache/stats", fleet.cache_stats),
                Route("/cache/requests", fleet.cache_requests),
                Route("/cache/explain/{request_id:path}", fleet.cache_explain),
                *(Route(path, fleet.one_worker) for path in _OF_ONE_WORKER),
                Route("/cache/storage", fleet.one_worker, methods=["GET", "PUT", "DELETE"]),
                Route("/router/explain/{request_id:path}", fleet.router_explain),
                Route("/router/workers", workers.list_or_add, methods=["GET", "POST"]),
                Route("/router/workers/{worker:path}/drain", workers.drain, methods=["POST"]),
                Route("/router/workers/{worker:path}", workers.show_or_remove, methods=["GET", "DELETE"]),
                Route("/openapi.json", fleet.openapi),
                Route("/", console.index),
                Route("/console/{name}", console.asset),
                Route("/metrics", self._metrics),
                Route("/health", self._ready),
                Route("/health/live", self._live),
            ],
            middleware=middleware,
            exception_handlers={RequestError: on_request_error, HTTPException: on_http_exception},
        )
        app.router.redirect_slashes = False  # a wrong path is an error in OpenAI's shape, not a redirect
        return app

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.render()
        if self._config.owns_workers:
            text += (await self._fleet.metrics(request)).encode()
        return Response(text, headers={"content-type": self.metrics.content_type})

    async def _ready(self, request: Request) -> Response:
        if self._is_stopping or not self.registry.has_ready:
            raise no_worker("the router shuts down" if self._is_stopping else "none is healthy")
        return json_response({"status": "ready"})

    async def _live(self, request: Request) -> Response:
        return json_response({"status": "live"})


async def _not_here(request: Request) -> Response:
    """GET on what takes a POST, or on nothing."""
    path = request.url.path
    raise HTTPException(405 if endpoint_of(path) != "other" or path in _POSTED else 404)


def _tokenised_models(routing: RoutingConfig) -> Collection[str] | None:
    """The names of the model that the tokenizer is for; None where it was named, and so is taken for all of them."""
    if routing.model_path is not None or routing.tokenizer_path is not None:
        return None
    return {EMBEDDED_NAME} if routing.served_model_name is None else {EMBEDDED_NAME, routing.served_model_name}


class _GateKeeper:
    """A `WorkerListener`: with a worker, those who wait for one may come in."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def added(self, worker: Worker) -> None: ...

    def ready(self, worker: Worker) -> None:
        self._gate.pump()

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None: ...
