"""`--api-key`."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pagefall.api.errors import error_response
from pagefall.errors import RequestError

_OPEN_PATHS: Final = frozenset({"/health", "/health/live", "/metrics"})
"""What probes and scrapers read, which are seldom given a key; nothing in it comes from a prompt or an answer."""


class ApiKeyMiddleware:
    """Lets requests through that carry `Authorization: Bearer <api_key>`, and those for `_OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or self._is_authorized(scope):
            await self._app(scope, receive, send)
            return
        error = RequestError(
            "Incorrect API key provided: send the server's key as 'Authorization: Bearer KEY'.",
            status=401,
            type="authentication_error",
            code="invalid_api_key",
        )
        await error_response(error)(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        # Headers are Latin-1 on the wire; comparing bytes in constant time tells nothing about the key.
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip(" ").encode("latin-1"), self._api_key)
