"""Connections to workers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from tests.fake_worker import Answering, FakeWorker, Seen, fake_workers

from pagefall.router.config import WorkersConfig
from pagefall.router.upstream import UnreachableError, UpstreamError, Upstreams
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import Worker, WorkerRegistry

pytestmark = pytest.mark.anyio

MEBIBYTE = 1 << 20


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Upstreams, Worker]]:
    registry = WorkerRegistry(WorkersConfig(), clock=lambda: 0.0)
    async with Upstreams(connect_timeout=5, worker_api_key=None) as upstreams:
        registry.listen(upstreams)
        yield upstreams, registry.add(worker_spec(url), "flag")


async def test_bodies_and_answers_of_many_megabytes_pass_both_ways() -> None:
    async def echo(seen: Seen, answering: Answering) -> None:
        await answering.begin("application/octet-stream")
        for start in range(0, len(seen.body), MEBIBYTE):
            await answering.chunk(seen.body[start : start + MEBIBYTE])
        await answering.end()

    body = bytes(range(256)) * (8 * MEBIBYTE // 256)
    async with fake_workers("a") as [worker], connected(worker.url) as (upstreams, known):
        worker.behaviour = echo
        answer = await upstreams.send(known.worker_id, "POST", "/v1/x", [], body)
        pieces = []
        async for piece in answer.body():
            pieces.append(piece)
            await asyncio.sleep(0)
    assert b"".join(pieces) == body


async def test_a_connection_is_kept_for_the_next_request_and_a_closed_one_is_not_used() -> None:
    ports: list[int] = []

    async def note_port(seen: Seen, answering: Answering) -> None:
        ports.append(answering._writer.get_extra_info("peername")[1])
        await answering.whole(200, b"{}")

    async with fake_workers("a") as [worker], connected(worker.url) as (upstreams, known):
        worker.behaviour = note_port

        async def ask() -> None:
            answer = await upstreams.send(known.worker_id, "POST", "/v1/x", [], b"")
            await answer.read(100)
            answer.close()

        await ask()
        await ask()
        await worker.kill()
        await worker.start()
        await ask()
    assert ports[0] == ports[1] != ports[2]


async def test_an_answer_that_is_too_long_is_not_read() -> None:
    async def long(seen: Seen, answering: Answering) -> None:
        await answering.whole(200, b"x" * 1000)

    async with fake_workers("a") as [worker], connected(worker.url) as (upstreams, known):
        worker.behaviour = long
        answer = await upstreams.send(known.worker_id, "POST", "/v1/x", [], b"")
        with pytest.raises(UpstreamError, match="too large"):
            await answer.read(999)
        answer.close()


async def test_workers_with_certificates_are_reached_and_those_of_strangers_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    worker = FakeWorker("a")
    await worker.start(tls)
    url = worker.url.replace("http:", "https:")
    try:
        async with connected(url) as (upstreams, known):
            with pytest.raises(UnreachableError):
                await upstreams.send(known.worker_id, "GET", "/health", [], b"")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        async with connected(url) as (upstreams, known):
            answer = await upstreams.send(known.worker_id, "GET", "/health", [], b"")
            assert (answer.status, await answer.read(100)) == (200, b'{"status": "ready"}')
            answer.close()
    finally:
        await worker.kill()


@pytest.mark.parametrize(
    ("key", "sent"),
    [("theirs", {b"authorization", b"x-pagefall-owner"}), (None, {b"authorization", b"x-api-key"})],
)
def test_the_key_of_a_client_is_for_no_worker_that_has_its_own(key: str | None, sent: set[bytes]) -> None:
    upstreams = Upstreams(connect_timeout=5, worker_api_key=key)
    headers = upstreams.authorized([(b"authorization", b"Bearer mine"), (b"x-api-key", b"mine"), (b"accept", b"*/*")])
    assert {name for name, _ in headers} == sent | {b"accept"}
    assert any(b"mine" in value for _, value in headers) == (key is None)
