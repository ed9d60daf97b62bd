"""`pagefall router` as a process: what starts and ends in which order, and what signals mean."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, nullcontext
from typing import Final, Protocol

from pagefall.api.server import HttpServer, bind
from pagefall.router.app import Router
from pagefall.router.config import RouterConfig, RoutingConfig
from pagefall.router.prompts import Encoder
from pagefall.router.request_log import request_log

_log = logging.getLogger("pagefall.router")

_INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Python's own look for cycles several times in every request, which takes a tenth of it."""


class LoadedEncoder(Encoder, AbstractContextManager["LoadedEncoder"], Protocol):
    """Its threads end with its context."""


Beside = Callable[[Router], AbstractAsyncContextManager[None]]
"""What runs as long as the router does."""


def serve(
    config: RouterConfig,
    load_encoder: Callable[[RoutingConfig], LoadedEncoder | None] | None,
    *,
    beside: Beside = lambda router: nullcontext(),
) -> int:
    """Serves until a signal ends it: the first lets requests under way end, for as long as the grace is.

    `load_encoder` is given, not imported, since what it needs brings torch along. It takes seconds; None: prompts
    are routed as text.

    Raises `ConfigError` or `ModelError`, one line each, before the port is open.
    """
    _configure_logging(config)
    with ExitStack() as stack:
        bound = stack.enter_context(bind(config.http))
        encoder = None if load_encoder is None else load_encoder(config.routing)
        if encoder is not None:
            stack.enter_context(encoder)
        if config.http.api_key is None and config.http.admin_api_key is None and not _is_loopback(config.http.host):
            _log.warning(
                "without --admin-api-key, whoever reaches %s can add workers, and these are sent prompts and keys",
                config.http.host,
            )
        gc.freeze()  # what was imported stays: no collection need look at it again
        gc.set_threshold(*_GC_THRESHOLDS)
        asyncio.run(_serve(config, encoder, bound, beside))
    _log.info("stopped")
    return 0


async def _serve(config: RouterConfig, encoder: Encoder | None, bound: socket.socket, beside: Beside) -> None:
    with request_log(config.telling.request_log) as logs:
        router = Router(config, encoder, observers=logs)
        server = HttpServer(
            router.app,
            config.http,
            bound,
            on_ready=lambda url: _log.info(
                "listening; ready with the first healthy worker\n%s", _start_report(router, config, url)
            ),
        )
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            _log.info(
                "shutting down; requests under way: %d; once more to end at once", router.registry.num_outstanding
            )
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, lambda number, frame: os._exit(_INTERRUPTED))
            router.stop_accepting()
            server.should_exit = True
            loop.call_later(config.http.shutdown_grace_seconds, router.abort_all)

        for number in _SIGNALS:
            loop.add_signal_handler(number, shut_down)
        # In this order, so that nobody watches workers that are being ended.
        async with beside(router), router.running():
            await server.run_until_exit()


def _start_report(router: Router, config: RouterConfig, url: str) -> str:
    lines = {
        "policy": config.routing.policy,
        "workers": ", ".join(f"{worker.name} {worker.worker_id}" for worker in router.registry.workers)
        or "none yet: POST /router/workers",
        "URL": f"{url}/v1",
    }
    return "\n".join(f"  {name:8} {value}" for name, value in lines.items())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _configure_logging(config: RouterConfig) -> None:
    """Our own log lines at the level asked for; libraries speak up only to warn."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("pagefall").setLevel(config.http.log_level.upper())
