"""The HTTP application: which path is answered by what."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from pagefall.api.access import AccessMiddleware
from pagefall.api.auth import ApiKeyMiddleware
from pagefall.api.cache_stats import CacheStats, PoolFacts
from pagefall.api.chat import ChatCompletions
from pagefall.api.completions import Completions
from pagefall.api.console import Console
from pagefall.api.cors import cors
from pagefall.api.diagnose import Diagnose
from pagefall.api.endpoints import document
from pagefall.api.engine import Engine
from pagefall.api.errors import on_http_exception, on_request_error
from pagefall.api.explanations import Explanations
from pagefall.api.health import Health
from pagefall.api.keepalive import KeepaliveMiddleware
from pagefall.api.kv_events import KvEvents
from pagefall.api.messages import CountTokens, Messages
from pagefall.api.models import Models
from pagefall.api.openapi import OpenApi
from pagefall.api.operations import Operations
from pagefall.api.responses import CreateResponse, KeptResponses
from pagefall.api.responses_store import ResponseStore
from pagefall.api.same_origin import same_origin
from pagefall.api.storage import Storage
from pagefall.api.tokens import Tokens
from pagefall.api.tree import Tree
from pagefall.config import CacheConfig, HttpConfig, InsightConfig
from pagefall.errors import RequestError
from pagefall.insight.series import TrafficSeries
from pagefall.metrics.registry import Metrics


def create_app(
    engine: Engine,
    config: HttpConfig,
    *,
    metrics: Metrics | None = None,
    insight: InsightConfig = InsightConfig(),  # noqa: B008 - frozen
    series: TrafficSeries | None = None,
    facts: PoolFacts = PoolFacts(page_size=CacheConfig().page_size),  # noqa: B008 - frozen
) -> Starlette:
    """The ASGI application over `engine`. It logs every request itself: the server below it need not.

    `metrics` None: they are switched off, and `/metrics` says so. `series` is what `/cache/stats` shows of the past;
    None: nothing.
    """
    max_body_bytes = config.max_body_bytes
    health, models, operations = Health(engine), Models(engine), Operations(engine, metrics)
    tokens, storage = Tokens(engine, max_body_bytes=max_body_bytes), Storage(engine, max_body_bytes=max_body_bytes)
    counting = CountTokens(engine, max_body_bytes=max_body_bytes)
    responses = ResponseStore(
        max_responses=config.max_stored_responses,
        max_bytes=config.max_stored_response_bytes,
        ttl_seconds=config.stored_response_ttl,
    )
    create_response = CreateResponse(engine, responses, max_body_bytes=max_body_bytes)
    kept = KeptResponses(engine, responses, max_body_bytes=max_body_bytes)
    series = series or TrafficSeries(window_seconds=insight.metrics_window)
    cache_stats = CacheStats(engine, series, facts, redact_prompts=insight.redact_prompts)
    tree = Tree(engine, redact_prompts=insight.redact_prompts)
    console = Console(f"Pagefall serves {engine.model.id} here over the OpenAI API")
    explanations, kv_events = Explanations(engine), KvEvents(engine)
    diagnosis = Diagnose(engine, page_size=facts.page_size, redact_prompts=insight.redact_prompts)
    middleware = [Middleware(AccessMiddleware)]
    if config.cors_origins is not None:
        middleware.append(cors(config.cors_origins))
    middleware.append(same_origin(config.cors_origins))
    if config.api_key is not None or config.admin_api_key is not None:
        middleware.append(Middleware(ApiKeyMiddleware, api_key=config.api_key, admin_api_key=config.admin_api_key))
    middleware.append(Middleware(KeepaliveMiddleware, seconds=config.stream_keepalive_seconds))
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", ChatCompletions(engine, max_body_bytes=max_body_bytes), methods=["POST"]),
            Route("/v1/completions", Completions(engine, max_body_bytes=max_body_bytes), methods=["POST"]),
            Route("/v1/responses", create_response, methods=["POST"]),
            Route("/v1/responses/input_tokens", kept.count_tokens, methods=["POST"]),
            Route("/v1/responses/{response_id}", kept.show_or_delete, methods=["GET", "DELETE"]),
            Route("/v1/responses/{response_id}/input_items", kept.input_items),
            Route("/v1/responses/{response_id}/cancel", kept.cancel, methods=["POST"]),
            Route("/v1/messages", Messages(engine, max_body_bytes=max_body_bytes), methods=["POST"]),
            Route("/v1/messages/count_tokens", counting.count, methods=["POST"]),
            Route("/v1/models", models.all),
            Route("/v1/models/{model:path}", models.one),
            Route("/tokenize", tokens.tokenize, methods=["POST"]),
            Route("/detokenize", tokens.detokenize, methods=["POST"]),
            Route("/flush_cache", operations.flush_cache, methods=["GET", "POST"]),
            Route("/cache/events", kv_events.stream),
            Route("/cache/storage", storage.show_or_change, methods=["GET", "PUT", "DELETE"]),
            Route("/cache/stats", cache_stats.show),
            Route("/cache/tree", tree.show),
            Route("/cache/requests", explanations.list),
            Route("/cache/explain/{request_id:path}", explanations.one),
            Route("/cache/diagnose", diagnosis.show),
            Route("/metrics", operations.metrics),
            Route("/health", health.ready),
            Route("/health/live", health.live),
            Route("/openapi.json", OpenApi(document()).show),
            Route("/", console.index),
            Route("/console/{name}", console.asset),
        ],
        middleware=middleware,
        exception_handlers={
            RequestError: on_request_error,
            HTTPException: on_http_exception,
        },
    )
    app.router.redirect_slashes = False  # a wrong path is an error in OpenAI's shape, not a redirect
    return app
