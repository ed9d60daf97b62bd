"""The Redis servers of a store: which of them has a key, and a few connections to each, made when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import redis.exceptions
from redis.asyncio.connection import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from pagefall_storage.errors import StorageError
from pagefall_storage.redis_config import (
    Address,
    RedisConfig,
    RedisSettings,
    SentinelTarget,
    ServerTarget,
    SocketTarget,
)
from pagefall_storage.redis_exchange import exchange
from pagefall_storage.redis_replies import Answer, ProtocolError, Replies, ReplyError

_WRONG_SERVER: Final = frozenset({"READONLY", "MOVED", "CLUSTERDOWN", "MASTERDOWN", "LOADING"})
"""Refusals that say: the server for this is another one by now, or will be."""


class RedisUnavailableError(StorageError):
    """No answer from a server. The message is one line."""

    def __init__(self, kind: Literal["timeout", "error"], reason: object) -> None:
        super().__init__(" ".join(str(reason).split()))
        self.kind = kind


class Server:
    """One server, or the one that is in office. `on_doubt` is called when it seems to be the wrong one, or gone."""

    def __init__(
        self, name: str, pool: ConnectionPool, *, max_connections: int, on_doubt: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.evictions = Evictions()
        self._pool = pool
        self._slots = asyncio.Semaphore(max_connections)
        self._on_doubt = on_doubt

    async def ask(self, request: Iterable[bytes | memoryview], answer: Answer) -> None:
        """Sends a batch of commands and returns once `answer` is complete.

        Raises `RedisUnavailableError`: then, and when this is cancelled, `answer` has what came before.
        """
        async with self._slots:
            try:
                connection = await self._pool.get_connection()
                try:
                    await exchange(connection, request, answer)
                finally:
                    await self._pool.release(connection)
            except redis.exceptions.TimeoutError as error:
                self._on_doubt()
                raise RedisUnavailableError("timeout", f"{self.name}: {error}") from error
            except (redis.exceptions.RedisError, OSError, ProtocolError) as error:
                self._on_doubt()
                raise RedisUnavailableError("error", f"{self.name}: {error}") from error

    async def call(self, commands: Sequence[bytes]) -> list[object]:
        """The reply to each of the commands, `ReplyError` among them. Raises `RedisUnavailableError`."""
        answer = Replies(len(commands))
        await self.ask([b"".join(commands)], answer)
        await self.review(answer.replies)
        return answer.replies

    async def review(self, replies: Iterable[object]) -> None:
        """Looks for refusals that say that this is the wrong server, and finds the right one for the next call."""
        if any(isinstance(reply, ReplyError) and reply.code in _WRONG_SERVER for reply in replies):
            self._on_doubt()
            # A name may stand for another server by now, and a Sentinel know another master: look again.
            await _quietly(self._pool.disconnect(inuse_connections=False))

    async def aclose(self) -> None:
        await _quietly(self._pool.aclose())


class Evictions:
    """Counts what a server has evicted since it was first asked, though its own count begins anew when it does."""

    def __init__(self) -> None:
        self.num_evicted = 0
        self._last: int | None = None

    @property
    def is_known(self) -> bool:
        return self._last is not None

    def note(self, count: int) -> None:
        if self._last is not None:
            self.num_evicted += count - self._last if count >= self._last else count
        self._last = count


class Servers(Protocol):
    async def group(self, names: Sequence[bytes]) -> list[tuple[Server, list[int]]]:
        """Each server with the indices of those `names` that it has. Raises `RedisUnavailableError`."""

    async def all(self) -> Sequence[Server]:
        """Every server that has values of its own. Raises `RedisUnavailableError`."""

    async def aclose(self) -> None:
        """Closes all connections. May be called again."""


class OneServer:
    """A single server, whoever it is at the time."""

    def __init__(self, server: Server, sentinel: Sentinel | None = None) -> None:
        self._server = server
        self._sentinel = sentinel

    async def group(self, names: Sequence[bytes]) -> list[tuple[Server, list[int]]]:
        return [(self._server, list(range(len(names))))]

    async def all(self) -> Sequence[Server]:
        return [self._server]

    async def aclose(self) -> None:
        await self._server.aclose()
        if self._sentinel is not None:
            await _quietly(self._sentinel.aclose())


def server_for(settings: RedisSettings, target: ServerTarget | SocketTarget | SentinelTarget) -> OneServer:
    """Connects to nothing yet."""
    match target:
        case ServerTarget(address, db):
            return OneServer(node(settings, address, db))
        case SocketTarget(path, db):
            pool = ConnectionPool(UnixDomainSocketConnection, path=path, db=db, **_pool_arguments(settings))
            return OneServer(Server(path, pool, max_connections=settings.config.max_connections))
        case SentinelTarget(sentinels, service, db):
            timeout = settings.config.connect_timeout_seconds
            sentinel = Sentinel(
                [(address.host, address.port) for address in sentinels],
                sentinel_kwargs={
                    "username": settings.config.sentinel_username,
                    "password": settings.config.sentinel_password,
                    "protocol": 2,
                    "socket_timeout": timeout,  # a silent one is passed over
                    "socket_connect_timeout": timeout,
                    "retry": Retry(NoBackoff(), 0),
                    "ssl": settings.uses_tls,
                    **(_tls_arguments(settings.config) if settings.uses_tls else {}),
                },
            )
            sentinel_pool = SentinelConnectionPool(
                service,
                sentinel,
                connection_class=SentinelManagedSSLConnection if settings.uses_tls else SentinelManagedConnection,
                db=db,
                **_pool_arguments(settings),
            )
            server = Server(service, sentinel_pool, max_connections=settings.config.max_connections)
            return OneServer(server, sentinel)


def node(
    settings: RedisSettings, address: Address, db: int = 0, *, on_doubt: Callable[[], None] = lambda: None
) -> Server:
    """A server at an address."""
    arguments = _pool_arguments(settings) | {"host": address.host, "port": address.port, "db": db}
    pool = ConnectionPool(SSLConnection, **arguments) if settings.uses_tls else ConnectionPool(**arguments)
    return Server(str(address), pool, max_connections=settings.config.max_connections, on_doubt=on_doubt)


def _pool_arguments(settings: RedisSettings) -> dict[str, Any]:
    config = settings.config
    return {
        "max_connections": config.max_connections,
        "credential_provider": _credentials(settings),
        "protocol": 2,
        "driver_info": None,  # nothing is said that a user may not be allowed to say
        "socket_timeout": None,  # deadlines are the caller's
        "socket_connect_timeout": config.connect_timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
        **(_tls_arguments(config) if settings.uses_tls else {}),
    }


def _tls_arguments(config: RedisConfig) -> dict[str, Any]:
    return {
        "ssl_ca_certs": config.tls_ca_file,
        "ssl_certfile": config.tls_cert_file,
        "ssl_keyfile": config.tls_key_file,
        "ssl_cert_reqs": "required" if config.tls_verify else "none",
        "ssl_check_hostname": config.tls_verify,
    }


def _credentials(settings: RedisSettings) -> CredentialProvider | None:
    if settings.config.password_file is not None:
        return _PasswordFile(settings.username, Path(settings.config.password_file))
    return None if settings.password is None else _Password(settings.username, settings.password)


class _Password(CredentialProvider):
    def __init__(self, username: str | None, password: str) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return (self._password,) if self._username is None else (self._username, self._password)


class _PasswordFile(CredentialProvider):
    """Read for each connection: a password that has changed needs no restart."""

    def __init__(self, username: str | None, path: Path) -> None:
        self._username = username
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._path.read_text().strip()
        except (OSError, ValueError) as error:
            raise redis.exceptions.AuthenticationError(f"cannot read {self._path}: {error}") from error
        return _Password(self._username, password).get_credentials()


async def _quietly(closing: Any) -> None:
    """Where a connection goes away it does not matter that it went away before, or does not answer."""
    try:
        await closing
    except (redis.exceptions.RedisError, OSError):
        return
