"""`/cache/storage`: the store below host memory, shown, attached, replaced and detached while the server runs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.decode import parse_body
from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.messages import BreakerState


class AttachBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `--hicache-storage-backend` and its extra config say it, but that the latter is an object, not text."""

    backend: str
    extra_config: dict[str, Any] = {}


class StorageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Which store is attached. The settings are not told: there may be a password among them."""

    attached: bool
    backend: str | None
    description: str | None
    breaker: BreakerState | None


class Storage:
    """The endpoint."""

    def __init__(self, engine: Engine, *, max_body_bytes: int) -> None:
        self._engine = engine
        self._max_body_bytes = max_body_bytes

    async def show_or_change(self, request: Request) -> Response:
        """GET, PUT and DELETE. Each answers with what is attached then."""
        self._answer()  # where there can be no store that is said first
        match request.method:
            case "PUT":
                body = await parse_body(request, AttachBody, _checked, max_body_bytes=self._max_body_bytes)
                await self._engine.attach_storage(body.backend, body.extra_config)
            case "DELETE":
                await self._engine.detach_storage()
        return json_response(self._answer())

    def _answer(self) -> StorageAnswer:
        stats = self._engine.controller_stats()
        if stats is None:
            raise no_tiers()
        return StorageAnswer(
            attached=stats.breaker is not None,
            backend=stats.storage_backend,
            description=stats.storage_description,
            breaker=stats.breaker,
        )


def no_tiers() -> RequestError:
    """A store can only be below host memory."""
    return RequestError(
        "This server has no tiers below device memory, so it can have no store. Start it with "
        "--enable-hierarchical-cache.",
        code="hierarchical_cache_disabled",
    )


def _checked(body: AttachBody) -> AttachBody:
    if not body.backend:
        raise RequestError("Invalid value for 'backend': the name is empty.", param="backend", code="invalid_value")
    return body
