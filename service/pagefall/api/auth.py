"""`--api-key` and `--admin-api-key`."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from pagefall.api.errors import error_response
from pagefall.errors import RequestError

_OPEN_PATHS: Final = frozenset({"/", "/health", "/health/live", "/metrics"})
"""What probes and scrapers read, which are seldom given a key; nothing in it comes from a prompt or an answer."""

_OPEN_FOLDER: Final = "/console/"
"""The console's own files, which ask for the key."""

_ADMIN_PATHS: Final = frozenset({"/cache/storage"})
"""What changes the server for all its clients."""

_ADMIN_FOLDER: Final = "/router/workers"
"""The same, of a router: its workers, and each of them."""

_FLUSH_PATH: Final = "/flush_cache"

_CACHE_FOLDER: Final = "/cache/"
"""What looks into the cache, and so into the prompts of all clients."""


class ApiKeyMiddleware:
    """Lets requests through that carry a key in `Authorization: Bearer KEY` or, as Anthropic's clients do, in
    `x-api-key: KEY`, and those for open paths.

    For `_ADMIN_PATHS` it has to be `admin_api_key`: where there is none, nobody with a mere `api_key` gets there. So it
    is for all of `/cache/`, and for flushing the store, where there is an `admin_api_key`. For all others either will
    do; they are open where there is no `api_key`.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, admin_api_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_api_key = admin_api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_response(error, scope)(scope, receive, send)

    def _is_costly_flush(self, scope: Scope) -> bool:
        """The store holds what days have computed, for other servers too: where there is an operator, it is theirs."""
        return scope["path"] == _FLUSH_PATH and self._admin_api_key is not None and flushes_store(scope)

    def _refusal(self, scope: Scope) -> RequestError | None:
        if scope["path"] in _OPEN_PATHS or scope["path"].startswith(_OPEN_FOLDER):
            return None
        key = sent_key(scope)
        is_admin, is_client = _equal(key, self._admin_api_key), _equal(key, self._api_key)
        if scope["path"] in _ADMIN_PATHS or scope["path"].startswith(_ADMIN_FOLDER) or self._is_costly_flush(scope):
            if is_admin:
                return None
            if is_client:
                return _not_for_clients(has_admin_key=self._admin_api_key is not None)
            return _incorrect("the server's admin key" if self._admin_api_key is not None else "the server's key")
        if scope["path"].startswith(_CACHE_FOLDER) and self._admin_api_key is not None:
            if is_admin:
                return None
            return _not_for_clients_eyes() if is_client else _incorrect("the server's admin key")
        if self._api_key is None or is_client or is_admin:
            return None
        return _incorrect("the server's key")


def flushes_store(scope: Scope) -> bool:
    """Whether a request to `/flush_cache` is for the store too."""
    return any("storage" in value for value in QueryParams(scope["query_string"]).getlist("tiers"))


def sent_key(scope: Scope) -> bytes | None:
    """The key that came with the request, right or wrong; that of `Authorization` where there are two."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")
    # Headers are Latin-1 on the wire.
    return key.strip(" ").encode("latin-1") or None


def _equal(given: bytes | None, key: str | None) -> bool:
    """Comparing bytes in constant time tells nothing about the key."""
    return given is not None and key is not None and hmac.compare_digest(given, key.encode())


def _incorrect(which: str) -> RequestError:
    return RequestError(
        f"Incorrect API key provided: send {which} as 'Authorization: Bearer KEY'.",
        status=401,
        type="authentication_error",
        code="invalid_api_key",
    )


def _not_for_clients(*, has_admin_key: bool) -> RequestError:
    fix = "Send the admin key instead." if has_admin_key else "Start the server with --admin-api-key, and send that."
    return RequestError(
        f"Your key lets you use the server, not change it. {fix}",
        status=403,
        type="permission_error",
        code="admin_key_required",
    )


def _not_for_clients_eyes() -> RequestError:
    return RequestError(
        "Your key lets you use the server, not look into its cache, where others' prompts are. Send the admin key "
        "instead.",
        status=403,
        type="permission_error",
        code="admin_key_required",
    )
