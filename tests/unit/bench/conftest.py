from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class FakeServer:
    """An OpenAI-compatible server that answers with x, and with `refusal_status` to what `refuses` says.

    `wait` seconds pass before each event, which brings `tokens_per_event` tokens. It says of each prompt that
    `cached_tokens` of it came from host memory, unless None.
    """

    def __init__(
        self,
        *,
        refuses: Callable[[dict[str, Any]], bool] = lambda _: False,
        refusal_status: int = 422,
        context_length: int = 8192,
        tokens_per_word: int = 1,
        tokens_per_event: int = 1,
        wait: float = 0.0,
        cached_tokens: int | None = None,
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.num_hung_up = 0
        self._refuses = refuses
        self._refusal_status = refusal_status
        self._context_length = context_length
        self._tokens_per_word = tokens_per_word
        self._tokens_per_event = tokens_per_event
        self._wait = wait
        self._cached_tokens = cached_tokens
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
            ]
        )

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "fake-model"}, {"id": "other"}]})

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        prompt = body["prompt"]
        num_prompt = len(prompt) if isinstance(prompt, list) else self._tokens_per_word * len(prompt.split())
        if self._refuses(body):
            return JSONResponse({"error": {"message": "not that field"}}, self._refusal_status)
        if num_prompt + body["max_tokens"] > self._context_length:
            return JSONResponse({"error": {"message": "longer than the context"}}, 400)
        usage: dict[str, Any] = {"prompt_tokens": num_prompt, "completion_tokens": body["max_tokens"]}
        if self._cached_tokens is not None:
            by_tier = {"device": 0, "host": self._cached_tokens, "storage": 0}
            details = {"cached_tokens": self._cached_tokens, "cached_tokens_by_tier": by_tier}
            usage["prompt_tokens_details"] = details
        if not body.get("stream"):
            return JSONResponse({"choices": [{"text": "x"}], "usage": usage})
        return StreamingResponse(self._events(body, usage), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any], usage: dict[str, Any]) -> AsyncIterator[bytes]:
        finished = False
        try:
            for _ in range(body["max_tokens"] // self._tokens_per_event):
                await anyio.sleep(self._wait)
                yield self._event({"choices": [{"text": "x" * self._tokens_per_event, "finish_reason": None}]})
            yield self._event({"choices": [{"text": "", "finish_reason": "length"}]})
            if body.get("stream_options"):
                yield self._event({"choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
            finished = True
        finally:
            self.num_hung_up += not finished

    @staticmethod
    def _event(value: object) -> bytes:
        return b"data: " + msgspec.json.encode(value) + b"\n\n"


Serve = Callable[[FakeServer], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve() -> Serve:
    """Runs a fake server on a real port and gives a client that has it as its base URL."""

    @asynccontextmanager
    async def run(fake: FakeServer) -> AsyncIterator[httpx.AsyncClient]:
        server = uvicorn.Server(uvicorn.Config(fake.app, port=0, log_level="error", lifespan="off", ws="none"))
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve)
            while not server.started:
                await anyio.sleep(0.005)
            port = server.servers[0].sockets[0].getsockname()[1]
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                yield http
            server.should_exit = True

    return run
