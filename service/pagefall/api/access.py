"""The outermost layer: request ids, one log line a request, and no bug's details in an answer."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefall.api.errors import error_response, internal_error
from pagefall.text.requests import Usage

_access_log = logging.getLogger("pagefall.access")
_log = logging.getLogger("pagefall.api")

_SCOPE_KEY: Final = "pagefall.access"
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_ROUTINE_PATHS: Final = frozenset({"/health", "/health/live", "/metrics", "/cache/stats"})
_OK: Final = 200
_CLIENT_GONE: Final = 499
"""What the log says where no status could be sent (nginx's number for it)."""


@dataclass
class AccessEntry:
    """What the log line of one request will say; its handler adds the tokens, and more if it has more to say."""

    request_id: str
    status: int | None = None
    usages: list[Usage] = field(default_factory=list)
    note: str = ""

    def tokens(self) -> str:
        if not self.usages:
            return ""
        prompt = sum(usage.prompt_tokens for usage in self.usages)
        cached = sum(usage.cached_tokens for usage in self.usages)
        generated = sum(usage.completion_tokens for usage in self.usages)
        return f" prompt={prompt} cached={cached} generated={generated}"


def note_usage(scope: Scope, usages: Iterable[Usage]) -> None:
    """Adds tokens to the log line of the request that `scope` belongs to."""
    entry = scope[_SCOPE_KEY]
    assert isinstance(entry, AccessEntry)
    entry.usages.extend(usages)


def note(scope: Scope, text: str) -> None:
    """Puts `text` into the log line of the request that `scope` belongs to."""
    entry = scope[_SCOPE_KEY]
    assert isinstance(entry, AccessEntry)
    entry.note = text


def http_request_id(scope: Scope) -> str:
    """The `x-request-id` of the request that `scope` belongs to, the client's or ours."""
    entry = scope[_SCOPE_KEY]
    assert isinstance(entry, AccessEntry)
    return entry.request_id


def _level(scope: Scope, entry: AccessEntry) -> int:
    """What probes and scrapers ask for every second is for those who want to see everything, if all is well."""
    is_routine = scope["path"] in _ROUTINE_PATHS and entry.status == _OK
    return logging.DEBUG if is_routine else logging.INFO


class AccessMiddleware:
    """Echoes the client's `x-request-id` if it is sane, else makes one; logs; turns a bug into a plain 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        entry = AccessEntry(request_id=wanted if _SANE_ID.fullmatch(wanted) else uuid.uuid4().hex)
        scope[_SCOPE_KEY] = entry

        async def send_noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = entry.request_id
            await send(message)

        start = time.perf_counter()
        try:
            await self._app(scope, receive, send_noting)
        except ClientDisconnect:
            pass  # the body never arrived: nobody is left to answer
        except Exception:  # noqa: BLE001 - a bug in one request's handling must neither leak nor end the server
            _log.exception("request %s failed: %s %s", entry.request_id, scope["method"], quote(scope["path"]))
            if entry.status is None:
                await error_response(internal_error(), scope)(scope, receive, send_noting)
        finally:
            _access_log.log(
                _level(scope, entry),
                "%s %s %d %.1fms%s%s id=%s",
                scope["method"],
                quote(scope["path"]),
                entry.status or _CLIENT_GONE,
                (time.perf_counter() - start) * 1000,
                entry.tokens(),
                entry.note,
                entry.request_id,
            )
