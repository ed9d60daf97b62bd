"""`/health` (ready to serve) and `/health/live` (the loop turns)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError


class Health:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def ready(self, request: Request) -> Response:
        if not self._engine.ready:
            raise RequestError(
                "The server is not ready to serve requests.",
                status=503,
                type="service_unavailable_error",
                code="not_ready",
                retry_after_seconds=1,
            )
        return json_response({"status": "ready"})

    async def live(self, request: Request) -> Response:
        return json_response({"status": "live"})
