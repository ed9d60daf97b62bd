"""Pages of other origins change nothing here: a browser lets any page send a POST to any server, if blindly."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from pagefall.api.cors import origins_of
from pagefall.api.errors import error_response
from pagefall.errors import RequestError

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_CHANGING_PATHS: Final = frozenset({"/flush_cache"})
"""Where GET changes something too, as it does in SGLang."""

_OWN_SITES: Final = ("same-origin", "none")
"""`Sec-Fetch-Site` of a page that came from here, and of what a person has typed."""


def same_origin(cors_origins: str | None) -> Middleware:
    """`cors_origins` are `--cors-origins`: pages that may do all that others may not."""
    return Middleware(SameOriginMiddleware, allowed=() if cors_origins is None else origins_of(cors_origins))


class SameOriginMiddleware:
    """Refuses what would change something, or cost something, if a page of another origin asks for it.

    Browsers say so in `Sec-Fetch-Site`, and over plain HTTP from another machine, where they leave that out, in
    `Origin`. Pages can set neither. Whoever sends neither is no browser, and passes.
    """

    def __init__(self, app: ASGIApp, allowed: tuple[str, ...]) -> None:
        """`allowed` origins are as browsers write them; "*" is every one."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _may_change(scope) and self._is_foreign(Headers(scope=scope)):
            await error_response(_refusal(Headers(scope=scope).get("origin")), scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if "*" in self._allowed or origin in self._allowed:
            return False
        if site is not None:
            return site not in _OWN_SITES
        return origin is not None and origin.partition("://")[2] != headers.get("host")


def _may_change(scope: Scope) -> bool:
    method: str = scope["method"]
    if scope["path"] in _CHANGING_PATHS:
        return method != "OPTIONS"
    return method not in _SAFE_METHODS


def _refusal(origin: str | None) -> RequestError:
    page = "A page of another origin" if origin is None else f"A page of {origin[:200]}"
    return RequestError(
        f"{page} may not do this. If it is to, name its origin in --cors-origins; if it is the server's own and a "
        "proxy stands before that, let the proxy pass the Host header on.",
        status=403,
        type="permission_error",
        code="cross_origin_request",
    )
