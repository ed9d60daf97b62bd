"""Forwarding to workers that behave."""

from __future__ import annotations

import asyncio
import json

import anyio
import pytest
from tests.fake_worker import Answering, Seen, event, fake_workers, silent, status
from tests.router_rig import CHAT, chat_body, router_config, running_router, until

from pagefall.config import HttpConfig
from pagefall.router.config import ForwardConfig, WorkersConfig

pytestmark = pytest.mark.anyio


async def test_the_body_reaches_the_worker_byte_for_byte() -> None:
    odd = b'{ "messages":[ ],  "model" : "x",\n "unknown": 1e400, "broken": '
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviour = _echo
        answer = await running.client.post(f"{CHAT}?a=%20b", content=odd)
    assert answer.content == odd
    assert worker.posts[0].target == f"{CHAT}?a=%20b"


async def test_headers_pass_both_ways_but_for_those_of_the_connection() -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.whole(200, b"{}", {"x-mine": "1", "keep-alive": "timeout=5", "date": "then", "server": "me"})

    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviour = behave
        headers = {"x-theirs": "2", "connection": "x-secret", "x-secret": "3", "x-request-id": "my-id"}
        answer = await running.client.post(CHAT, content=b"{}", headers=headers)
    seen = worker.posts[0].headers
    assert seen["x-theirs"] == "2"
    assert "x-secret" not in seen
    assert seen["x-request-id"] == "my-id"
    assert seen["host"] == worker.url.removeprefix("http://")
    assert answer.headers["x-mine"] == "1"
    assert "keep-alive" not in answer.headers
    assert answer.headers["x-request-id"] == "my-id"
    assert answer.headers["x-pagefall-worker"] == "w0"
    assert len(answer.headers.get_list("date")) == len(answer.headers.get_list("server")) == 1


async def test_a_request_without_an_id_gets_one_that_the_worker_sees_too() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        answer = await running.chat()
    assert answer.headers["x-request-id"] == worker.posts[0].headers["x-request-id"] != ""


async def test_the_worker_header_can_be_switched_off() -> None:
    forward = ForwardConfig(disable_worker_header=True)
    async with fake_workers("a") as [worker], running_router(router_config(worker, forward=forward)) as running:
        assert "x-pagefall-worker" not in (await running.chat()).headers


async def test_the_workers_key_takes_the_place_of_the_clients() -> None:
    workers_config = WorkersConfig(worker_api_key="theirs", health_interval=0.05)
    async with (
        fake_workers("a") as [worker],
        running_router(router_config(worker, workers_config=workers_config)) as running,
    ):
        await running.chat(authorization="Bearer mine")
    assert worker.posts[0].headers["authorization"] == "Bearer theirs"


async def test_each_piece_of_a_stream_is_passed_on_before_the_next_is_sent() -> None:
    go_on = asyncio.Event()

    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(event("a", 0))
        await go_on.wait()
        await answering.chunk(event("a", 1))
        await answering.end()

    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviour = behave
        async with running.client.stream("POST", CHAT, content=chat_body(stream=True)) as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == event("a", 0)
            go_on.set()
            assert await anext(pieces) == event("a", 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_is_passed_on_to_the_worker(stream: bool) -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        if stream:
            await answering.begin()
            await answering.chunk(event("a", 0))
        await answering.until_left()

    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviour = behave
        host, port = running.url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as connection:
            body = chat_body(stream=stream)
            await connection.send(
                b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)
            )
            await until(lambda: bool(worker.posts))
            if stream:
                await connection.receive()
        await until(lambda: worker.num_hang_ups == 1)
        await until(lambda: running.router.registry.num_outstanding == 0)
        assert running.router.registry.workers[0].num_ended["client_gone"] == 1
        await running.all_ended()
        assert running.breakers() == ["closed"]


async def test_other_paths_of_v1_are_forwarded_where_least_is_to_do() -> None:
    async with fake_workers("a", "b") as [busy, idle], running_router(router_config(busy, idle)) as running:
        busy.behaviour = silent
        async with anyio.create_task_group() as group:
            group.start_soon(running.chat)
            await until(lambda: bool(busy.posts))
            for path in ("/v1/embeddings", "/v1/new/things", "/tokenize"):
                answer = await running.client.post(path, content=b'{"input": "x"}')
                assert answer.status_code == 200
            group.cancel_scope.cancel()
    assert [seen.path for seen in idle.posts] == ["/v1/embeddings", "/v1/new/things", "/tokenize"]


async def test_a_body_that_is_too_large_is_refused() -> None:
    config = HttpConfig(port=0, max_body_bytes=100)
    async with fake_workers("a") as [worker], running_router(router_config(worker, http=config)) as running:
        answer = await running.client.post(CHAT, content=b" " * 101)
    assert answer.status_code == 413
    assert worker.posts == []


async def test_a_request_for_a_model_goes_to_a_worker_that_serves_it() -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.paths["/v1/models"] = {"data": [{"id": "other"}]}
        async with running_router(router_config(one, other)) as running:
            for _ in range(4):
                await running.client.post(CHAT, content=json.dumps({"model": "other", "messages": []}).encode())
            for _ in range(4):
                await running.client.post(CHAT, content=json.dumps({"model": "neither", "messages": []}).encode())
    assert len(one.posts) == 2
    assert len(other.posts) == 6


async def test_a_workers_refusal_is_the_clients_answer_and_twenty_of_them_open_no_breaker() -> None:
    async with fake_workers("a", "b") as workers, running_router(router_config(*workers)) as running:
        for worker in workers:
            worker.behaviour = status(400, "too long")
        answers = [await running.chat() for _ in range(20)]
        assert {answer.status_code for answer in answers} == {400}
        assert answers[0].json()["error"]["message"] == "too long"
        await running.all_ended()
        assert running.breakers() == ["closed", "closed"]
    assert sum(len(worker.posts) for worker in workers) == 20


async def test_without_any_worker_the_client_hears_so_at_once() -> None:
    async with running_router(router_config()) as running:
        answer = await running.chat()
        health = await running.client.get("/health")
        live = await running.client.get("/health/live")
    assert answer.status_code == health.status_code == 503
    assert answer.json()["error"]["code"] == "no_worker"
    assert int(answer.headers["retry-after"]) > 0
    assert live.status_code == 200


async def test_a_stream_passes_whole() -> None:
    async with (
        fake_workers("a") as [worker],
        running_router(router_config(worker)) as running,
        running.client.stream("POST", CHAT, content=chat_body(stream=True)) as answer,
    ):
        whole = b"".join([piece async for piece in answer.aiter_raw()])
    assert whole == b"".join(event("a", index) for index in range(3)) + b"data: [DONE]\n\n"


async def _echo(seen: Seen, answering: Answering) -> None:
    await answering.whole(200, seen.body)


async def test_browsers_are_told_which_pages_may_use_the_router() -> None:
    config = HttpConfig(port=0, cors_origins="https://chat.example")
    headers = {"origin": "https://chat.example", "access-control-request-method": "POST"}
    async with fake_workers("a") as [worker], running_router(router_config(worker, http=config)) as running:
        asked = await running.client.options(CHAT, headers=headers)
        answer = await running.chat(origin="https://chat.example")
    assert asked.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example"


async def test_a_page_of_another_origin_changes_nothing() -> None:
    headers = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        client = running.client
        answers = [
            await client.post(CHAT, content=chat_body(), headers=headers),
            await client.post("/router/workers/w0/drain", headers=headers),
            await client.delete("/router/workers/w0", headers=headers),
            await client.get("/flush_cache", headers=headers),
        ]
        assert running.router.registry.workers[0].state == "healthy"
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (403, "cross_origin_request")
    ] * 4
    assert worker.posts == []


async def test_workers_do_not_hear_which_page_a_browser_shows() -> None:
    config = HttpConfig(port=0, cors_origins="https://chat.example")
    async with fake_workers("a") as [worker], running_router(router_config(worker, http=config)) as running:
        await running.chat(origin="https://chat.example", sec_fetch_site="cross-site")
    assert not {"origin", "sec-fetch-site"} & worker.posts[0].headers.keys()
