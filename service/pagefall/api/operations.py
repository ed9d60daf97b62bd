"""What an operator asks of a running server: `/metrics` and `/flush_cache`."""

from __future__ import annotations

from typing import Final, cast, get_args

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.errors import ErrorDetail
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.messages import Tier
from pagefall.metrics.registry import Metrics

_TIERS: Final = get_args(Tier)
_DEFAULT_TIERS: Final = "device,host"


class FlushAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`num_pages`: pages dropped of each tier that was asked for. `error`: why the store was not cleared."""

    num_pages: dict[Tier, int]
    error: ErrorDetail | None = None


class Operations:
    """The endpoints."""

    def __init__(self, engine: Engine, metrics: Metrics | None) -> None:
        """`metrics` None: they are switched off."""
        self._engine = engine
        self._metrics = metrics

    async def metrics(self, request: Request) -> Response:
        if self._metrics is None:
            raise RequestError(
                "This server has no metrics: it runs with --disable-metrics. Start it without.",
                status=404,
                code="metrics_disabled",
            )
        return Response(self._metrics.render(), headers={"content-type": self._metrics.content_type})

    async def flush_cache(self, request: Request) -> Response:
        """`?tiers=device,host,storage`, the first two where it is absent. 503 when the store could not be cleared."""
        flushed = await self._engine.flush_cache(_tiers(request.query_params))
        if flushed.storage_error is None:
            return json_response(FlushAnswer(num_pages=flushed.num_pages))
        error = ErrorDetail(
            message=f"The store was not cleared: {flushed.storage_error}",
            type="service_unavailable_error",
            code="storage_error",
        )
        return json_response(FlushAnswer(num_pages=flushed.num_pages, error=error), status=503)


def _tiers(query: QueryParams) -> frozenset[Tier]:
    """Raises `RequestError` for what is no tier, and for any other parameter: it would have been meant to matter."""
    for name in query:
        if name != "tiers":
            raise RequestError(f"Unknown parameter: '{name}'. The only one is 'tiers'.", param=name)
    names = [name.strip() for name in ",".join(query.getlist("tiers") or [_DEFAULT_TIERS]).split(",")]
    for name in names:
        if name not in _TIERS:
            raise RequestError(
                f"Invalid value for 'tiers': {name!r} is not one of {', '.join(_TIERS)}. Give one or several, with "
                "commas.",
                param="tiers",
            )
    return cast("frozenset[Tier]", frozenset(names))
