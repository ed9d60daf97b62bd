"""What an operator asks of a running server: `/metrics` and `/flush_cache`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.metrics import Metrics


class Operations:
    """The endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._metrics = Metrics(engine.stats)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.render(), headers={"content-type": self._metrics.content_type})

    async def flush_cache(self, request: Request) -> Response:
        """Answers with the number of pages that were dropped."""
        return json_response({"num_pages": await self._engine.flush_cache()})
