"""`pagefall bench router`: what the router adds to the time to the first token.

The same requests are sent, at the same pace, to a worker that answers at once and to the router before it, in turns.
Client, router and worker are three processes.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import msgspec

from pagefall.bench.prompts import WORDS
from pagefall.bench.report import Figure, Row, table, to_json
from pagefall.bench.server_process import run_until_ended, served
from pagefall.errors import PagefallError
from pagefall.router.routing import PolicyName

_PATH: Final = b"/v1/chat/completions"
_HEAD: Final = b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_WARM_UP_REQUESTS: Final = 50
_NUM_SYSTEM_PROMPTS: Final = 16


class RouterBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`rate` in requests a second; each of `rounds` is `seconds` of them at the worker, then as long at the router.
    `prompt_tokens` are each request's own, behind one of a few system prompts of `system_tokens`.
    """

    rate: float = 100.0
    seconds: float = 5.0
    rounds: int = 3
    prompt_tokens: int = 256
    system_tokens: int = 0
    policy: PolicyName = "cache_aware"
    router_flags: str = ""
    json: str | None = None


def bench_router(config: RouterBenchConfig) -> int:
    """Measure and print the table; returns 0. Raises `PagefallError`."""
    samples = run_until_ended(_measure, config)
    figures = [
        Figure(Row("time to first token", "ms"), samples),
        Figure(Row("time to first token", "ms", "p99"), samples),
    ]
    sys.stdout.write(table(figures, ["router", "worker"]))
    added = [(figure.value("router") or 0.0) - (figure.value("worker") or 0.0) for figure in figures]
    sys.stdout.write(f"added: {added[0]:.2f} ms median, {added[1]:.2f} ms p99\n")
    if config.json is not None:
        targets = {"router": f"pagefall router --policy {config.policy} {config.router_flags}", "worker": "alone"}
        Path(config.json).write_bytes(to_json(figures, targets, config))
    return 0


async def _measure(config: RouterBenchConfig) -> dict[str, tuple[float, ...]]:
    samples: dict[str, list[float]] = {"router": [], "worker": []}
    rng = random.Random(0)
    async with _instant_worker() as worker:
        flags = ["--worker-urls", worker, "--policy", config.policy, "--log-level", "warning"]
        async with served([*flags, *config.router_flags.split()], {}, subcommand="router") as router:
            targets = {"worker": worker, "router": router}
            for url in targets.values():
                await _run(url, rng, config, num_requests=_WARM_UP_REQUESTS)
            for _ in range(config.rounds):
                for name, url in targets.items():
                    samples[name] += await _run(url, rng, config, num_requests=round(config.rate * config.seconds))
    return {name: tuple(seconds * 1000 for seconds in values) for name, values in samples.items()}


async def _run(url: str, rng: random.Random, config: RouterBenchConfig, *, num_requests: int) -> list[float]:
    """The seconds of each request to its first event, in an open loop."""
    client = _Client(url)
    bodies = [_body(rng, config) for _ in range(num_requests)]
    seconds: list[float] = []

    async def request(body: bytes) -> None:
        seconds.append(await client.first_event(body))

    began_at = time.perf_counter()
    async with anyio.create_task_group() as group:
        for index, body in enumerate(bodies):
            await anyio.sleep(max(0.0, began_at + index / config.rate - time.perf_counter()))
            group.start_soon(request, body)
    client.close()
    return seconds


class _Client:
    """Keeps connections, and does as little as it can: what it takes itself is in both measurements."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def first_event(self, body: bytes) -> float:
        """Reads the whole answer; returns the seconds until its first event. Raises `PagefallError`."""
        while self._idle and self._idle[-1][0].at_eof():
            self._idle.pop()[1].close()  # nobody had used it for as long as servers wait
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
        head = _HEAD % (_PATH, len(body))
        began_at = time.perf_counter()
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise PagefallError(f"a request was refused: {answer[:100]!r}")
        await reader.readuntil(b"data:")
        seconds = time.perf_counter() - began_at
        await reader.readuntil(b"0\r\n\r\n")
        self._idle.append((reader, writer))
        return seconds

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


@asynccontextmanager
async def _instant_worker() -> AsyncIterator[str]:
    """Its URL."""
    command = [sys.executable, "-m", "pagefall.bench.instant_worker"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


def _body(rng: random.Random, config: RouterBenchConfig) -> bytes:
    messages = [{"role": "user", "content": _words(rng, config.prompt_tokens)}]
    if config.system_tokens:
        system = random.Random(rng.randrange(_NUM_SYSTEM_PROMPTS))
        messages.insert(0, {"role": "system", "content": _words(system, config.system_tokens)})
    return json.dumps({"messages": messages, "stream": True}).encode()


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))
