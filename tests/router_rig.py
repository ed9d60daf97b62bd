"""A router over fake workers, on a real socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec
from tests.fake_worker import MODEL, FakeWorker

from pagefall.api.server import HttpServer, bind
from pagefall.config import HttpConfig
from pagefall.router.app import Router
from pagefall.router.config import ForwardConfig, RouterConfig, RoutingConfig, TellingConfig, WorkersConfig
from pagefall.router.prompts import Encoder
from pagefall.router.proxy import DecisionObserver
from pagefall.router.workers import WorkerState

CHAT = "/v1/chat/completions"


class RunningRouter:
    def __init__(self, router: Router, url: str, client: httpx.AsyncClient, server: HttpServer) -> None:
        self.router = router
        self.url = url
        self.client = client
        self.server = server

    async def chat(self, text: str = "Hi", *, stream: bool = False, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(CHAT, content=chat_body(text, stream=stream), headers=sent)

    async def wait_for(self, name: str, state: WorkerState) -> None:
        def is_there() -> bool:
            worker = self.router.registry.get(name)
            return (worker is None and state == "removed") or (worker is not None and worker.state == state)

        await until(is_there)

    async def all_ended(self) -> None:
        """The router is done with what its clients have already."""
        await until(lambda: all(decision.is_ended for decision in self.router.decisions))

    def breakers(self) -> list[str]:
        return [worker.breaker.state for worker in self.router.registry.workers]


def chat_body(text: str = "Hi", *, stream: bool = False, **more: object) -> bytes:
    return json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": text}], "stream": stream, **more}
    ).encode()


def router_config(
    *workers: FakeWorker,
    workers_config: WorkersConfig | None = None,
    routing: RoutingConfig | None = None,
    forward: ForwardConfig | None = None,
    http: HttpConfig | None = None,
    telling: TellingConfig | None = None,
) -> RouterConfig:
    """Round robin, probes twenty times a second, and any free port, where nothing else is said."""
    probed = workers_config or WorkersConfig(health_interval=0.05, health_timeout=0.5, breaker_failures=3)
    return RouterConfig(
        workers=msgspec.structs.replace(probed, worker_urls=tuple(worker.url for worker in workers)),
        routing=routing or RoutingConfig(policy="round_robin"),
        forward=forward or ForwardConfig(),
        http=http or HttpConfig(port=0),
        telling=telling or TellingConfig(),
    )


@asynccontextmanager
async def running_router(
    config: RouterConfig,
    encoder: Encoder | None = None,
    *,
    observers: Sequence[DecisionObserver] = (),
) -> AsyncIterator[RunningRouter]:
    """Every worker is healthy."""
    router = Router(config, encoder, observers=observers)
    with bind(config.http) as bound:
        ready = anyio.Event()
        server = HttpServer(router.app, config.http, bound, on_ready=lambda url: ready.set())
        async with router.running(), anyio.create_task_group() as group:
            group.start_soon(server.run_until_exit)
            await ready.wait()
            async with httpx.AsyncClient(base_url=server.url, timeout=20, trust_env=False, verify=False) as client:
                running = RunningRouter(router, server.url, client, server)
                await until(lambda: all(worker.state == "healthy" for worker in router.registry.workers))
                yield running
            server.should_exit = server.force_exit = True


def document(answer: httpx.Response, status: int = 200) -> Any:
    """The JSON of an answer that has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.002)
