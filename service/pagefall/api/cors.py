"""`--cors-origins`: what browsers are told of pages that come from elsewhere and want to use the server."""

from __future__ import annotations

from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

_SECONDS: Final = 600
"""For so long a browser need not ask again."""


def origins_of(origins: str) -> tuple[str, ...]:
    """Each of them as browsers write it."""
    return tuple(origin.strip().rstrip("/") for origin in origins.split(","))


def cors(origins: str) -> Middleware:
    """`origins` with commas between them; "*" is every one. Keys travel in headers, so no cookies are allowed."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins_of(origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-pagefall-cache", "retry-after"],
        max_age=_SECONDS,
    )
