"""What a router has of one worker alone, and the console that shows it."""

from __future__ import annotations

import httpx
import pytest
from tests.fake_worker import fake_workers, status
from tests.router_rig import document, router_config, running_router

from pagefall.config import HttpConfig
from pagefall.router.config import WorkersConfig


async def test_what_is_of_one_workers_cache_is_asked_of_the_one_that_is_named() -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.paths["/cache/tree"] = {"branches": []}
        async with running_router(router_config(one, other)) as running:
            get = running.client.get
            unnamed = document(await get("/cache/tree"), 400)["error"]
            unknown = document(await get("/cache/storage?worker=w7"), 400)["error"]
            tree = document(await get("/cache/tree?max_branches=3&worker=w1"))
            refused = document(await get("/cache/diagnose?worker=w0"), 404)["error"]
    assert (unnamed["param"], unnamed["code"]) == ("worker", "worker_required")
    assert "w0, w1" in unnamed["message"]
    assert unknown["code"] == "invalid_value"
    assert tree == {"branches": []}
    assert [seen.target for seen in other.seen if seen.path == "/cache/tree"] == ["/cache/tree?max_branches=3"]
    assert refused["message"] == "no such path"


@pytest.mark.parametrize("path", ["/cache/stats", "/cache/requests"])
async def test_where_a_worker_is_named_its_own_answer_stands_for_all(path: str) -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.paths[path] = {"of": "b"}
        async with running_router(router_config(one, other)) as running:
            answer = document(await running.client.get(f"{path}?since=3&worker=w1"))
    assert answer == {"of": "b"}
    assert [seen.target for seen in other.seen if seen.path == path] == [f"{path}?since=3"]
    assert not [seen for seen in one.seen if seen.path == path]


async def test_the_store_of_one_worker_can_be_changed_by_operators() -> None:
    http = HttpConfig(port=0, api_key="client", admin_api_key="admin")
    async with fake_workers("a", "b") as [one, other]:
        other.paths["/cache/storage"] = {"attached": True}
        async with running_router(router_config(one, other, http=http)) as running:

            async def change(method: str, key: str, query: str = "?worker=w1") -> httpx.Response:
                headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
                body = b'{"storage_backend": "file"}' if method == "PUT" else b""
                return await running.client.request(method, f"/cache/storage{query}", content=body, headers=headers)

            for method in ("PUT", "DELETE"):
                assert (await change(method, "client")).status_code == 403
                assert (await change(method, "admin", "")).status_code == 400
                assert document(await change(method, "admin")) == {"attached": True}
    changes = [seen for seen in other.seen if seen.path == "/cache/storage"]
    assert [(seen.method, seen.target, seen.body) for seen in changes] == [
        ("PUT", "/cache/storage", b'{"storage_backend": "file"}'),
        ("DELETE", "/cache/storage", b""),
    ]
    assert changes[0].headers["content-type"] == "application/json"
    assert changes[0].headers["authorization"] == "Bearer admin"
    assert not [seen for seen in one.seen if seen.path == "/cache/storage"]


async def test_the_workers_key_is_lent_to_nobody_for_changing_anything() -> None:
    async with fake_workers("a") as [worker]:
        worker.paths |= {"/cache/storage": {"attached": True}, "/flush_cache": {"num_pages": {"device": 1}}}
        lending = WorkersConfig(health_interval=0.05, worker_api_key="theirs")
        async with running_router(router_config(worker, workers_config=lending)) as running:
            changes = [
                await running.client.delete("/cache/storage?worker=w0"),
                await running.client.post("/flush_cache?tiers=device,storage"),
                await running.client.post("/flush_cache?tiers=%73torage"),
                await running.client.post("/router/workers", json={"url": "http://127.0.0.1:1"}),
                await running.client.post("/router/workers/w0/drain"),
                await running.client.delete("/router/workers/w0"),
            ]
            refusals = [document(answer, 403)["error"]["code"] for answer in changes]
            assert document(await running.client.get("/cache/storage?worker=w0")) == {"attached": True}
            assert document(await running.client.post("/flush_cache"))["num_pages"] == {"device": 1}
            assert document(await running.client.get("/router/workers/w0"))["state"] == "healthy"
    assert refusals == ["admin_key_required"] * 6
    seen = [(seen.method, seen.target) for seen in worker.seen if seen.path in ("/cache/storage", "/flush_cache")]
    assert seen == [("GET", "/cache/storage"), ("POST", "/flush_cache")]


async def test_what_every_worker_refuses_is_refused_as_they_do() -> None:
    async with fake_workers("a", "b") as workers:
        for worker in workers:
            worker.behaviour = status(400, "Invalid value for 'tiers'")
            worker.gets["/cache/stats"] = status(403, "not with this key")
        async with running_router(router_config(*workers)) as running:
            flushed = document(await running.client.post("/flush_cache?tiers=foo"), 400)["error"]
            stats = document(await running.client.get("/cache/stats"), 403)["error"]
            unknown = document(await running.client.get("/cache/stats?worker=w7"), 400)["error"]
    assert (flushed["message"], stats["message"]) == ("Invalid value for 'tiers'", "not with this key")
    assert unknown["message"].startswith("No worker 'w7' is known.")


async def test_a_path_that_is_nowhere_is_not_found_and_one_that_takes_a_post_says_so() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        paths = ("/v1/nothing", "/v1/chat/completions", "/v1/messages/count_tokens", "/v1/responses")
        statuses = [(await running.client.get(path)).status_code for path in paths]
    assert statuses == [404, 405, 405, 405]


async def test_the_console_and_the_description_of_the_api_are_there() -> None:
    http = HttpConfig(port=0, api_key="client")
    async with fake_workers("a") as [worker]:
        worker.paths["/openapi.json"] = {"openapi": "3.1.0"}
        async with running_router(router_config(worker, http=http)) as running:
            page = await running.client.get("/", headers={"accept": "text/html"})
            line = await running.client.get("/")
            script = await running.client.get("/console/app.js")
            unknown = await running.client.get("/console/nothing.js")
            described = await running.client.get("/openapi.json", headers={"authorization": "Bearer client"})
    assert "<title>Pagefall</title>" in page.text
    assert line.text.startswith("Pagefall routes to its workers here")
    assert script.headers["content-type"].startswith("text/javascript")
    assert (unknown.status_code, document(described)) == (404, {"openapi": "3.1.0"})
