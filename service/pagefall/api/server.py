"""The HTTP server: uvicorn on a socket and a loop that are ours, as are the signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from pagefall.config import HttpConfig
from pagefall.errors import ConfigError

_MARGIN_SECONDS: Final = 10
"""How much longer than the grace period connections may take to close: their requests have ended by then."""


def bind(config: HttpConfig) -> socket.socket:
    """A socket that is bound but does not listen yet: clients are refused until the server runs.

    Raises `ConfigError` naming the address, for example when another server has it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {config.host}: {error.strerror or error}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"--host {config.host} --port {config.port}: {error.strerror}; stop what uses it, or choose another"
        ) from error
    return bound


class HttpServer(uvicorn.Server):
    """Serves `app` until `should_exit` is set, then closes the socket and waits for requests under way."""

    def __init__(
        self, app: ASGIApp, config: HttpConfig, bound: socket.socket, *, on_ready: Callable[[str], None]
    ) -> None:
        """`on_ready` is called with the server's URL once it accepts connections."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,  # the application logs its requests itself
                lifespan="off",
                timeout_graceful_shutdown=round(config.shutdown_grace_seconds) + _MARGIN_SECONDS,
            )
        )
        self._bound = bound
        self._on_ready = on_ready
        host, port = bound.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"

    async def run_until_exit(self) -> None:
        await self.serve(sockets=[self._bound])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready(self.url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them alone: whoever runs the server decides what a signal means."""
        yield
