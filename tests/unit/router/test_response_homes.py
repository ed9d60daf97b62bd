from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from starlette.datastructures import Headers
from tests.fake_worker import MODEL, Answering, FakeWorker, Seen, fake_workers, reset, silent, status
from tests.router_rig import RunningRouter, router_config, running_router

from pagefall.router.config import ForwardConfig, WorkersConfig
from pagefall.router.fan_out import FanOut
from pagefall.router.response_homes import ResponseHomes
from pagefall.router.upstream import Upstreams
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import WorkerRegistry

RESPONSES = "/v1/responses"


async def keeping(seen: Seen, answering: Answering) -> None:
    """Answers with a response that is kept; 404 where it goes on from one that is not."""
    worker, fields = answering.worker, json.loads(seen.body)
    previous = fields.get("previous_response_id")
    if previous is not None and f"{RESPONSES}/{previous}" not in worker.paths:
        await status(404, f"{worker.name} has no {previous}")(seen, answering)
        return
    made = {"id": f"resp_{worker.name}{len(worker.paths)}", "object": "response"}
    worker.paths[f"{RESPONSES}/{made['id']}"] = made
    if not fields.get("stream"):
        await answering.whole(200, json.dumps(made).encode())
        return
    await answering.begin()
    created = {"type": "response.created", "response": made}
    await answering.chunk(b"event: response.created\ndata: " + json.dumps(created).encode() + b"\n\n")
    await answering.chunk(b"event: response.completed\ndata: {}\n\n")
    await answering.end()


def keep(*workers: FakeWorker) -> None:
    for worker in workers:
        worker.behaviour = keeping


async def respond(running: RunningRouter, previous: str | None = None, *, stream: bool = False) -> httpx.Response:
    body = {"model": MODEL, "input": "Hi", "stream": stream, "previous_response_id": previous}
    return await running.client.post(RESPONSES, json=body)


async def made(running: RunningRouter, previous: str | None = None) -> str:
    """The new response's id."""
    response = await respond(running, previous)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return str(answer["id"])


def home_of(response_id: str, workers: list[FakeWorker]) -> FakeWorker:
    return next(worker for worker in workers if response_id.startswith(f"resp_{worker.name}"))


@asynccontextmanager
async def kept(*names: str) -> AsyncIterator[tuple[RunningRouter, list[FakeWorker], FakeWorker, str]]:
    """A router, its workers, and of these the one that keeps a response, whose id comes last."""
    async with fake_workers(*names) as workers:
        keep(*workers)
        async with running_router(router_config(*workers)) as running:
            first = await made(running)
            yield running, workers, home_of(first, workers), first


async def test_a_conversation_goes_on_where_its_last_response_is_kept() -> None:
    async with fake_workers("a", "b", "c") as workers:
        keep(*workers)
        async with running_router(router_config(*workers)) as running:
            for _ in range(3):
                first = await made(running)
                chain = [first]
                for _ in range(4):
                    chain.append(await made(running, chain[-1]))
                assert {response_id[:6] for response_id in chain} == {first[:6]}
            streamed = await respond(running, first, stream=True)
            looked_for = [seen for worker in workers for seen in worker.seen if seen.method == "GET"]
    assert f"resp_{first[5]}" in streamed.text
    assert not [seen for seen in looked_for if seen.path.startswith(RESPONSES)], "what was seen made is known"


async def test_a_response_that_another_router_has_seen_made_is_looked_for_once() -> None:
    async with fake_workers("a", "b", "c") as workers:
        keep(*workers)
        workers[1].paths[f"{RESPONSES}/resp_old"] = {"id": "resp_old"}
        async with running_router(router_config(*workers)) as running:
            for _ in range(4):
                assert (await made(running, "resp_old")).startswith("resp_b")
            asked = [seen.target for worker in workers for seen in worker.seen if seen.path.startswith(RESPONSES + "/")]
            nowhere = await respond(running, "../resp ?x")
    assert asked == [f"{RESPONSES}/resp_old"] * 3
    assert nowhere.status_code == 404
    assert "has no" in nowhere.json()["error"]["message"]


async def test_while_the_worker_that_keeps_it_is_away_the_client_is_told_to_come_again() -> None:
    async with fake_workers("a", "b") as workers:
        keep(*workers)
        config = router_config(*workers, forward=ForwardConfig(queue_timeout=0.2, max_concurrent_requests=1))
        async with running_router(config) as running:
            first = await made(running)
            home = home_of(first, workers)
            await home.kill()
            await running.wait_for(home.url, "unhealthy")
            async with anyio.create_task_group() as group:
                group.start_soon(respond, running, first)  # takes no place that others could use
                await anyio.sleep(0.05)
                assert (await running.chat()).status_code == 200
            refused = await respond(running, first)
            await home.start()
            await running.wait_for(home.url, "healthy")
            second = await made(running, first)
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert "the one that keeps this response" in refused.json()["error"]["message"]
    assert second.startswith(first[:6])


async def test_it_waits_for_the_worker_that_keeps_it() -> None:
    async with kept("a", "b") as (running, _workers, home, first):
        await home.kill()
        await running.wait_for(home.url, "unhealthy")
        async with anyio.create_task_group() as group:
            group.start_soon(made, running, first)
            await anyio.sleep(0.1)
            await home.start()


async def test_with_the_worker_gone_another_says_that_it_does_not_have_it() -> None:
    async with kept("a", "b") as (running, _workers, home, first):
        deleted = await running.client.delete(f"/router/workers/{home.url}")
        assert deleted.status_code == 200, deleted.text
        response = await respond(running, first)
    assert response.status_code == 404
    assert f"has no {first}" in response.json()["error"]["message"]


async def test_a_full_queue_there_is_the_clients_answer() -> None:
    async with kept("a", "b") as (running, _workers, home, first):
        home.behaviours.append(status(503, "full", retry_after="1"))
        response = await respond(running, first)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "full"


async def test_a_failed_connection_to_it_is_tried_again() -> None:
    async with kept("a", "b") as (running, _workers, home, first):
        home.behaviours.append(reset)
        assert (await made(running, first)).startswith(first[:6])


async def test_one_that_drains_goes_on_with_what_it_keeps_until_it_is_removed() -> None:
    async with kept("a", "b") as (running, workers, home, first):
        home.paths[f"{RESPONSES}/resp_old"] = {"id": "resp_old"}
        (await running.client.post(f"/router/workers/{home.url}/drain")).raise_for_status()
        assert home_of(await made(running, first), workers) is home
        assert home_of(await made(running, "resp_old"), workers) is home
        assert home_of(await made(running), workers) is not home
        (await running.client.delete(f"/router/workers/{home.url}")).raise_for_status()
        assert (await respond(running, first)).status_code == 404


async def test_nobody_waits_for_one_that_is_removed() -> None:
    async with kept("a", "b") as (running, _workers, home, first):
        await home.kill()
        await running.wait_for(home.url, "unhealthy")
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await respond(running, first))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.sleep(0.05)
            with anyio.fail_after(3):
                (await running.client.delete(f"/router/workers/{home.url}")).raise_for_status()
    assert [answer.status_code for answer in answers] == [404]


async def test_each_client_owns_what_it_has_made_though_workers_are_sent_one_key() -> None:
    async with fake_workers("a") as [worker]:
        lending = WorkersConfig(health_interval=0.05, worker_api_key="theirs")
        async with running_router(router_config(worker, workers_config=lending)) as running:
            bearer, other, key = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}, {"x-api-key": "k"}
            forged = {**bearer, "x-pagefall-owner": "forged"}
            for headers in (bearer, other, key, forged, {}):
                await running.client.post(RESPONSES, json={"model": MODEL, "input": "Hi"}, headers=headers)
                await running.client.get(f"{RESPONSES}/resp_1", headers=headers)
    seen = [seen for seen in worker.seen if seen.path.startswith(RESPONSES)]
    assert {seen.headers["authorization"] for seen in seen} == {"Bearer theirs"}
    owners = [seen.headers.get("x-pagefall-owner") for seen in seen]
    assert owners[::2] == owners[1::2]
    first, second, third, fourth, none = owners[::2]
    assert first == third == fourth is not None
    assert len({first, second, none}) == 3
    assert none is None


async def test_while_one_that_may_keep_it_cannot_be_asked_nobody_says_that_it_is_gone() -> None:
    """A router that was started anew has seen nothing made."""
    async with fake_workers("a", "b", "c") as workers:
        keep(*workers)
        workers[2].gets["/health"] = status(503)
        config = router_config(*workers[:2], forward=ForwardConfig(queue_timeout=0.2))
        async with running_router(config) as running:
            (await running.client.post("/router/workers", json={"url": workers[2].url})).raise_for_status()
            joining = await respond(running, "resp_old")
            workers[2].paths[f"{RESPONSES}/resp_old"] = {"id": "resp_old"}
            del workers[2].gets["/health"]
            await running.wait_for(workers[2].url, "healthy")
            assert (await made(running, "resp_old")).startswith("resp_c")
            assert (await respond(running, "resp_never")).status_code == 404
            workers[1].gets[f"{RESPONSES}/resp_never"] = status(500)
            failing = await respond(running, "resp_never")
    assert [joining.status_code, failing.status_code] == [503, 503]
    assert "may keep this response" in joining.json()["error"]["message"]


async def test_others_are_not_waited_for_when_one_has_it() -> None:
    async with fake_workers("a", "b") as workers:
        keep(*workers)
        workers[0].gets[f"{RESPONSES}/resp_old"] = silent
        workers[1].paths[f"{RESPONSES}/resp_old"] = {"id": "resp_old"}
        async with running_router(router_config(*workers)) as running:
            with anyio.fail_after(5):
                assert (await made(running, "resp_old")).startswith("resp_b")


async def test_an_id_that_no_worker_can_have_made_is_asked_for_nowhere() -> None:
    async with fake_workers("a", "b") as workers:
        keep(*workers)
        async with running_router(router_config(*workers)) as running:
            assert (await respond(running, "r" * 129)).status_code == 404
    assert not [seen for worker in workers for seen in worker.seen if seen.path.startswith(RESPONSES + "/")]


@pytest.mark.parametrize("path", ["input_tokens", "{id}/cancel"])
async def test_what_else_is_about_a_response_is_sent_where_it_is_kept(path: str) -> None:
    async with kept("a", "b", "c") as (running, workers, home, first):
        before = [len(worker.posts) for worker in workers]
        for _ in range(3):
            body = {"model": MODEL, "input": "Hi", "previous_response_id": first}
            await running.client.post(f"{RESPONSES}/{path.format(id=first)}", json=body)
        more = [len(worker.posts) - count for worker, count in zip(workers, before, strict=True)]
    assert more == [3 if worker is home else 0 for worker in workers]


async def test_the_oldest_of_many_are_forgotten() -> None:
    registry = WorkerRegistry(WorkersConfig(), clock=time.monotonic)
    upstreams = Upstreams(connect_timeout=1.0, worker_api_key=None)
    homes = ResponseHomes(registry, FanOut(upstreams), max_remembered=2, patience_seconds=0.0, clock=time.monotonic)
    worker = registry.add(worker_spec("http://127.0.0.1:1"), "flag")
    registry.probe_succeeded(worker)
    for response_id in ("1", "2", "1", "3"):
        homes.kept(response_id, worker.worker_id)
    found = [await homes.find(response_id, Headers(), "r") for response_id in ("1", "2", "3")]
    assert found == [worker.worker_id, None, worker.worker_id]
