"""HTTP to the workers: one pool of connections a worker, and which headers pass."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

import httpx
from starlette.datastructures import Headers

from pagefall.api.auth import sent_key
from pagefall.api.responses_store import OWNER_HEADER
from pagefall.router.connections import Connection, ConnectionFailedError, ConnectionPool, RawHeaders
from pagefall.router.routing import WorkerId
from pagefall.router.workers import Worker

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

KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})
"""Where clients put their key: OpenAI's, and Anthropic's."""

_OF_BROWSERS: Final = frozenset({b"origin", b"sec-fetch-site"})
"""Where a page comes from is the router's to judge: a worker would compare it with its own host."""

_NOT_FORWARDED: Final = (
    _HOP_BY_HOP
    | _OF_BROWSERS
    | {
        b"host",
        b"content-length",
        b"expect",
        b"x-request-id",
        OWNER_HEADER.encode(),
    }
)
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server", b"x-request-id", b"x-pagefall-worker"}
"""Our own server writes the first two, and the others are set once for every answer."""


class UpstreamError(Exception):
    """There was no answer, or it broke off. The message says why."""


class UnreachableError(UpstreamError):
    """No connection. `is_refused` False: nobody said no, it took too long."""

    def __init__(self, message: str, *, is_refused: bool) -> None:
        super().__init__(message)
        self.is_refused = is_refused


class UpstreamAnswer:
    """A worker's answer, whose body is still to come. Names of headers are in lower case. Whoever gets it closes it."""

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._connection: Connection | None = connection

    async def body(self) -> AsyncIterator[bytes]:
        """Piece by piece, as they arrive. Raises `UpstreamError`."""
        try:
            while self._connection is not None and (chunk := await self._connection.read()):
                yield chunk
        except ConnectionFailedError as error:
            raise _broken(error) from error

    async def read(self, max_bytes: int) -> bytes:
        """All of it. Raises `UpstreamError`, for one that is longer too."""
        body = bytearray()
        async for chunk in self.body():
            body += chunk
            if len(body) > max_bytes:
                raise UpstreamError("its answer is too large")
        return bytes(body)

    def close(self) -> None:
        """What was not read to its end takes its connection with it: so the worker learns that nobody listens."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


class Upstreams:
    """A `WorkerListener`: a pool for each worker while there is one. Used as an async context manager."""

    def __init__(self, *, connect_timeout: float, worker_api_key: str | None) -> None:
        self._connect_timeout = connect_timeout
        self._worker_api_key = worker_api_key
        self._pools: dict[WorkerId, _Pool] = {}
        self._retired: list[_Pool] = []

    async def __aenter__(self) -> Upstreams:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._retired += self._pools.values()
        self.close_retired()

    def added(self, worker: Worker) -> None:
        self._pools[worker.worker_id] = _Pool(worker.worker_id)

    def ready(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None:
        """What is under way on it goes on until `close_retired`."""
        self._retired.append(self._pools.pop(worker.worker_id))

    def close_retired(self) -> None:
        """Closes the pools of workers that are gone, and whatever is still under way in them."""
        retired, self._retired = self._retired, []
        for pool in retired:
            pool.connections.close()

    async def send(
        self, worker_id: WorkerId, method: str, target: str, headers: RawHeaders, body: bytes
    ) -> UpstreamAnswer:
        """Returns with the answer's status and headers. `target` is the path with its query.

        Raises `UpstreamError`; waits for ever but for the connection.
        """
        pool = self._pools.get(worker_id)
        if pool is None:
            raise UnreachableError("the worker was removed", is_refused=True)
        head = pool.head(method, target, headers, len(body) if body or method == "POST" else None)
        try:
            connection = await pool.connections.take(self._connect_timeout)
        except TimeoutError as error:
            message = f"no connection in {self._connect_timeout:g} seconds"
            raise UnreachableError(message, is_refused=False) from error
        except OSError as error:
            raise UnreachableError(f"no connection: {error}", is_refused=True) from error
        try:
            await connection.ask(head, body)
        except ConnectionFailedError as error:
            connection.close()
            raise _broken(error) from error
        except BaseException:
            connection.close()
            raise
        return UpstreamAnswer(connection)

    def authorized(self, headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
        """With the workers' key in place of the client's, where workers have one, and a name for the client's."""
        key = self._worker_api_key
        if key is None:
            return list(headers)
        sent = [(name, value) for name, value in headers if name in KEY_HEADERS]
        others = [(name, value) for name, value in headers if name not in KEY_HEADERS]
        others.append((b"authorization", f"Bearer {key}".encode("latin-1")))
        if (client := sent_key({"headers": sent})) is not None:
            owner = hashlib.blake2b(client, key=key.encode()[:64], digest_size=16).hexdigest()
            others.append((OWNER_HEADER.encode(), owner.encode()))
        return others


def forwarded_headers(headers: Headers, request_id: str) -> RawHeaders:
    """The client's, but for those that are about its connection, or about the page that a browser shows."""
    dropped = _NOT_FORWARDED | _named_by_connection(headers.raw)
    kept = [(name, value) for name, value in headers.raw if name not in dropped]
    return [*kept, (b"x-request-id", request_id.encode("latin-1"))]


def returned_headers(raw: RawHeaders, more: Mapping[bytes, bytes]) -> RawHeaders:
    """The worker's, but for those that are about its connection, and `more`."""
    dropped = _NOT_RETURNED | _named_by_connection(raw)
    return [*(pair for pair in raw if pair[0] not in dropped), *more.items()]


def _named_by_connection(raw: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = [value for name, value in raw if name == b"connection"]
    return frozenset(name.strip().lower() for value in values for name in value.split(b","))


class _Pool:
    """One worker's connections, and how requests to it begin."""

    def __init__(self, worker_id: WorkerId) -> None:
        parts = urlsplit(worker_id)
        assert parts.hostname is not None
        is_tls = parts.scheme == "https"
        self._path = parts.path.encode("latin-1")
        self._host_header = parts.netloc.encode()
        self.connections = ConnectionPool(
            parts.hostname,
            parts.port or (443 if is_tls else 80),
            # SSL_CERT_FILE and SSL_CERT_DIR say what is trusted.
            tls=httpx.create_ssl_context() if is_tls else None,
            max_kept=_MAX_KEPT,
            keep_seconds=_KEEPALIVE_SECONDS,
        )

    def head(self, method: str, target: str, headers: RawHeaders, num_body_bytes: int | None) -> bytes:
        """Raises `UpstreamError` for what would not be read as it was meant."""
        lines = [
            b"%s %s%s HTTP/1.1" % (method.encode("latin-1"), self._path, target.encode("latin-1")),
            b"host: " + self._host_header,
            *(b"%s: %s" % header for header in headers),
        ]
        if num_body_bytes is not None:
            lines.append(b"content-length: %d" % num_body_bytes)
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or lines[0].count(b" ") != 2:
            raise UpstreamError("the path or a header has a character that it must not have")
        return head + b"\r\n\r\n"


def _broken(error: ConnectionFailedError) -> UpstreamError:
    return UpstreamError(f"the connection broke: {error}")
