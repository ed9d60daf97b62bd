"""HTTP to the workers: kept connections, one pool a worker, and which headers pass.

Requests go through httpx's transport rather than its client: no cookies, redirects, proxies or decoding come between,
and it costs half.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import TracebackType
from typing import Final

import httpx
from starlette.datastructures import Headers

from pagefall.router.routing import WorkerId
from pagefall.router.workers import Worker

RawHeaders = list[tuple[bytes, bytes]]

_KEEPALIVE_SECONDS: Final = 4.0
"""Shorter than the 5 s after which uvicorn, under most engines, closes a connection that nobody uses."""

_MAX_KEPT: Final = 256

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, 7.6.1: they are about one connection."""

_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server", b"x-request-id", b"x-pagefall-worker"}
"""Our own server writes the first two, and the id is set once for every answer."""


class Upstreams:
    """A `WorkerListener`: a pool for each worker while there is one. Used as an async context manager."""

    def __init__(self, *, connect_timeout: float, worker_api_key: str | None) -> None:
        self._timeout = {"connect": connect_timeout, "read": None, "write": None, "pool": None}
        self._authorization = None if worker_api_key is None else f"Bearer {worker_api_key}".encode("latin-1")
        self._transports: dict[WorkerId, httpx.AsyncHTTPTransport] = {}
        self._certified: ssl.SSLContext | None = None
        self._retired: list[httpx.AsyncHTTPTransport] = []

    async def __aenter__(self) -> Upstreams:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for transport in (*self._transports.values(), *self._retired):
            await transport.aclose()

    def added(self, worker: Worker) -> None:
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=_MAX_KEPT, keepalive_expiry=_KEEPALIVE_SECONDS
        )
        self._transports[worker.worker_id] = httpx.AsyncHTTPTransport(
            limits=limits, trust_env=False, verify=self._tls(worker.worker_id)
        )

    def ready(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None:
        """What is under way on it goes on until `close_retired`."""
        self._retired.append(self._transports.pop(worker.worker_id))

    async def close_retired(self) -> None:
        """Closes the pools of workers that are gone, and whatever is still under way in them."""
        retired, self._retired = self._retired, []
        for transport in retired:
            await transport.aclose()

    async def send(
        self, worker_id: WorkerId, method: str, target: str, headers: RawHeaders, body: bytes
    ) -> httpx.Response:
        """Returns with the answer's status and headers; whoever gets it closes its `stream`.

        `target` is the path with its query. Raises `httpx.TransportError`; waits for ever but for the connection.
        """
        request = httpx.Request(
            method,
            _url(worker_id, target),
            headers=headers,
            content=body,
            extensions={"timeout": self._timeout},
        )
        transport = self._transports.get(worker_id)
        if transport is None:
            raise httpx.ConnectError("the worker was removed")
        return await transport.handle_async_request(request)

    def _tls(self, worker_id: WorkerId) -> ssl.SSLContext:
        """One for all: reading the certificates takes as long as a hundred requests. Plain HTTP needs none of them."""
        if not worker_id.startswith("https:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._certified is None:
            self._certified = httpx.create_ssl_context()
        return self._certified

    def authorized(self, headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
        """With the workers' key in place of the client's, where workers have one."""
        if self._authorization is None:
            return list(headers)
        others = [(name, value) for name, value in headers if name != b"authorization"]
        return [*others, (b"authorization", self._authorization)]


@lru_cache(maxsize=1024)
def _url(worker_id: WorkerId, target: str) -> httpx.URL:
    """Parsed once: most requests have one of a few targets."""
    return httpx.URL(f"{worker_id}{target}")


def forwarded_headers(headers: Headers, request_id: str) -> RawHeaders:
    """The client's, but for those that are about its connection."""
    dropped = _NOT_FORWARDED | _named_by_connection(headers.raw)
    kept = [(name, value) for name, value in headers.raw if name not in dropped]
    return [*kept, (b"x-request-id", request_id.encode("latin-1"))]


def returned_headers(raw: Iterable[tuple[bytes, bytes]], more: Mapping[bytes, bytes]) -> RawHeaders:
    """The worker's, but for those that are about its connection, and `more`."""
    lowered = [(name.lower(), value) for name, value in raw]
    dropped = _NOT_RETURNED | _named_by_connection(lowered)
    return [*(pair for pair in lowered if pair[0] not in dropped), *more.items()]


def _named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = [value for name, value in raw if name == b"connection"]
    return frozenset(name.strip().lower() for value in values for name in value.split(b","))
