"""`pagefall router` as a process: from the command line to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.fake_worker import Answering, FakeWorker, Seen, event, fake_workers
from tests.router_rig import CHAT, chat_body, until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def router_process(
    worker: FakeWorker, log: Path, *flags: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "pagefall", "router", "--worker-urls", worker.url, "--port", str(port), *flags]
    command += ["--disable-tokenizer", "--policy", "round_robin"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PAGEFALL_")}
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(*command, stderr=stderr, env=environ)
    try:
        await until(lambda: "ready" in log.read_text() or process.returncode is not None)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_sigterm_lets_what_is_under_way_end_and_refuses_the_rest(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def slow(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(event("a", 0))
        await release.wait()
        await answering.chunk(b"data: [DONE]\n\n")
        await answering.end()

    log = tmp_path / "log"
    async with fake_workers("a") as [worker], router_process(worker, log) as (process, url):
        worker.behaviour = slow
        async with (
            httpx.AsyncClient(base_url=url, verify=False, timeout=20) as client,
            client.stream("POST", CHAT, content=chat_body(stream=True)) as answer,
        ):
            pieces = answer.aiter_raw()
            assert await anext(pieces) == event("a", 0)
            process.send_signal(signal.SIGTERM)
            await until(lambda: "shutting down; requests under way: 1" in log.read_text())
            release.set()
            rest = b"".join([piece async for piece in pieces])
        assert rest == b"data: [DONE]\n\n"
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert "w0" in log.read_text()


async def test_what_outlives_the_grace_ends_with_an_error_event(tmp_path: Path) -> None:
    async def endless(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(event("a", 0))
        await answering.until_left()

    log = tmp_path / "log"
    async with fake_workers("a") as [worker], router_process(worker, log, "--shutdown-grace-seconds", "0") as running:
        process, url = running
        worker.behaviour = endless
        async with (
            httpx.AsyncClient(base_url=url, verify=False, timeout=20) as client,
            client.stream("POST", CHAT, content=chat_body(stream=True)) as answer,
        ):
            pieces = answer.aiter_raw()
            assert await anext(pieces) == event("a", 0)
            process.send_signal(signal.SIGTERM)
            rest = b"".join([piece async for piece in pieces])
        assert b"the router shuts down" in rest
        assert await asyncio.wait_for(process.wait(), 20) == 0


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [((), False), (("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--admin-api-key", "k"), False)],
)
async def test_who_opens_it_to_others_without_a_key_is_warned(
    tmp_path: Path, flags: tuple[str, ...], is_warned: bool
) -> None:
    log = tmp_path / "log"
    async with fake_workers("a") as [worker], router_process(worker, log, *flags):
        assert ("can add workers" in log.read_text()) == is_warned
