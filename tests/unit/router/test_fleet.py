"""What the router answers itself: all workers as one, its own decisions, and who the workers are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.byte_tokenizer import byte_tokenizer
from tests.fake_worker import Answering, Behaviour, FakeWorker, Seen, fake_workers, silent, status
from tests.router_rig import CHAT, RunningRouter, document, router_config, running_router, until

from pagefall.actors.encoding import PromptEncoder
from pagefall.config import HttpConfig
from pagefall.kv_events import Hello, SnapshotEnd, encode_line
from pagefall.router.config import RoutingConfig, TellingConfig
from pagefall.router.request_log import RequestLog

pytestmark = pytest.mark.anyio

STATS = {
    "num_running": 1,
    "num_prompt_tokens": 100,
    "num_tokens_by_source": {"device": 40, "host": 10, "storage": 0, "computed": 50},
    "tiers": {"device": {"pages": {"total": 8, "free": 3}, "num_bytes": None}, "host": None, "storage": {"used": 5}},
    "redact_prompts": True,
}


async def test_models_are_the_union_and_each_can_be_asked_for() -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.paths["/v1/models"] = {"data": [{"id": "fake"}, {"id": "org/more"}]}
        async with running_router(router_config(one, other)) as running:
            models = document(await running.client.get("/v1/models"))
            more = document(await running.client.get("/v1/models/org/more"))
            missing = document(await running.client.get("/v1/models/none"), 404)
    assert [model["id"] for model in models["data"]] == ["fake", "org/more"]
    assert more == {"id": "org/more"}
    assert missing["error"]["code"] == "model_not_found"


async def test_stats_are_added_up_and_each_workers_own_is_there_too() -> None:
    async with fake_workers("a", "b", "c") as workers:
        for worker in workers[:2]:
            worker.paths["/cache/stats"] = STATS
        async with running_router(router_config(*workers)) as running:
            stats = document(await running.client.get("/cache/stats?since=5"))
    assert (stats["num_workers"], stats["num_answered"], stats["num_running"]) == (3, 2, 2)
    assert stats["num_tokens_by_source"]["device"] == 80
    assert stats["tiers"] == {"device": {"pages": {"total": 16, "free": 6}}, "host": None}
    assert stats["hit_rate"] == 0.5
    assert stats["workers"]["w0"] == STATS
    assert "error" in stats["workers"]["w2"]
    assert workers[0].seen[-1].target == "/cache/stats?since=5"


async def test_flushing_reaches_every_worker_and_says_which_did_not() -> None:
    async with fake_workers("a", "b") as [one, other]:
        one.paths["/flush_cache"] = other.paths["/flush_cache"] = {"num_pages": {"device": 3, "host": 1}}
        async with running_router(router_config(one, other)) as running:
            flushed = document(await running.client.post("/flush_cache?tiers=device,host"))
            del other.paths["/flush_cache"]
            other.behaviour = status(503, "store")
            half = document(await running.client.post("/flush_cache"), 503)
    assert flushed["num_pages"] == {"device": 6, "host": 2}
    assert one.seen[-2].target == "/flush_cache?tiers=device,host"
    assert half["num_pages"] == {"device": 3, "host": 1}
    assert "w1" in half["error"]["message"]


async def test_an_explanation_comes_from_the_worker_that_served_with_the_reason_for_that_worker() -> None:
    async with fake_workers("a", "b") as [one, other], running_router(router_config(one, other)) as running:
        first, second = await running.chat(x_request_id="first"), await running.chat(x_request_id="second")
        await running.all_ended()
        for worker in (one, other):
            worker.paths["/cache/explain/second"] = {"served_by": worker.name}
        explained = document(await running.client.get("/cache/explain/second"))
        own = document(await running.client.get("/router/explain/first"))
        by_answer = document(await running.client.get(f"/router/explain/{second.json()['id']}"))
        unknown = document(await running.client.get("/router/explain/never"), 404)
        nowhere = document(await running.client.get("/cache/explain/never"), 404)
    assert (explained["served_by"], explained["worker"]) == ("b", "w1")
    assert explained["routing"]["request_id"] == by_answer["request_id"] == "second"
    [attempt] = own["attempts"]
    assert (attempt["worker"], attempt["reason"], attempt["outcome"]) == ("w0", "its turn", "ok")
    assert (own["num_cached_tokens"], own["num_generated_tokens"], own["status"]) == (16, 3, first.status_code)
    assert unknown["error"]["code"] == "request_not_found"
    assert nowhere["error"]["message"] == "no such path"


async def test_the_workers_lists_of_requests_become_one() -> None:
    async with fake_workers("a", "b") as [one, other]:
        one.paths["/cache/requests"] = {"requests": [{"request_id": "x", "time": 1}], "num_remembered": 5}
        other.paths["/cache/requests"] = {"requests": [{"request_id": "y", "time": 2}], "num_remembered": 6}
        async with running_router(router_config(one, other)) as running:
            listed = document(await running.client.get("/cache/requests"))
    assert [(entry["request_id"], entry["worker"]) for entry in listed["requests"]] == [("y", "w1"), ("x", "w0")]
    assert listed["num_remembered"] == 11


async def test_workers_join_drain_and_leave_while_the_router_runs() -> None:
    async with fake_workers("a", "b") as [one, other], running_router(router_config(one)) as running:
        post, delete = running.client.post, running.client.delete
        added = document(await post("/router/workers", json={"url": other.url, "name": "second"}), 201)
        await running.wait_for("second", "healthy")
        assert {(await running.chat()).headers["x-pagefall-worker"] for _ in range(4)} == {"w0", "second"}
        assert document(await post("/router/workers/w0/drain"))["state"] == "draining"
        assert {(await running.chat()).headers["x-pagefall-worker"] for _ in range(4)} == {"second"}
        document(await post("/router/workers", json={"url": one.url}), 201)
        await running.wait_for("w0", "healthy")
        assert document(await delete(f"/router/workers/{other.url}"))["state"] == "removed"
        listed = document(await running.client.get("/router/workers"))
    assert (added["url"], added["state"], added["origin"]) == (other.url, "joining", "api")
    assert [(worker["name"], worker["state"]) for worker in listed["workers"]] == [("w0", "healthy")]
    assert listed["workers"][0]["models"] == ["fake"]
    assert listed["workers"][0]["num_ended"]["ok"] >= 2


async def test_a_worker_removed_now_hands_its_unanswered_requests_on() -> None:
    async with fake_workers("a", "b") as [one, other], running_router(router_config(one, other)) as running:
        one.behaviour = silent
        asking = asyncio.create_task(running.chat())
        await until(lambda: bool(one.posts))
        document(await running.client.delete("/router/workers/w0?now=true"))
        answer = await asking
    assert answer.headers["x-pagefall-worker"] == "w1"


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/router/workers", b'{"url": "nonsense"}', 400),
        ("POST", "/router/workers", b'{"uri": "http://a"}', 400),
        ("POST", "/router/workers", b'{"url": "http://a:1", "name": "a b"}', 400),
        ("DELETE", "/router/workers/none", b"", 404),
        ("DELETE", "/router/workers/w0?now=perhaps", b"", 400),
        ("PUT", "/router/workers", b"", 405),
    ],
)
async def test_what_cannot_be_done_with_workers_is_said(method: str, path: str, body: bytes, code: int) -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        error = document(await running.client.request(method, path, content=body), code)["error"]
    assert error["message"]


async def test_clients_need_the_key_and_operators_the_admin_key() -> None:
    http = HttpConfig(port=0, api_key="client", admin_api_key="admin")
    async with fake_workers("a") as [worker], running_router(router_config(worker, http=http)) as running:

        async def ask(path: str, key: str | None) -> int:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            return (await running.client.get(path, headers=headers)).status_code

        for path in ("/router/workers", "/router/workers/w0"):
            assert [await ask(path, key) for key in (None, "client", "admin")] == [401, 403, 200]
        assert [await ask("/v1/models", key) for key in (None, "client", "admin")] == [401, 200, 200]
        assert [await ask(path, None) for path in ("/health", "/health/live", "/metrics")] == [200, 200, 200]


async def test_metrics_count_what_happened() -> None:
    async with fake_workers("a", "b") as [one, other], running_router(router_config(one, other)) as running:
        one.behaviours.append(status(502))
        await running.chat()
        await running.all_ended()
        text = (await running.client.get("/metrics")).text
    samples = {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels, reverse=True))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["pagefall_router_requests_total", "w0", "server_error"] == 1
    assert samples["pagefall_router_requests_total", "w1", "ok"] == 1
    assert samples["pagefall_router_retries_total", "server_error"] == 1
    assert samples["pagefall_router_worker_state", "w0", "healthy"] == 1
    assert samples["pagefall_router_breaker_state", "w0", "open"] == 0
    assert samples["pagefall_router_decisions_total", "no_prefix"] == 2
    assert samples["pagefall_router_cached_tokens_total",] == 16
    assert samples["pagefall_router_routing_seconds_count",] == 1
    assert samples["pagefall_router_running_requests",] == 0


async def test_metrics_of_workers_that_nobody_else_reaches_are_there_too() -> None:
    def tells(value: int) -> Behaviour:
        async def behave(seen: Seen, answering: Answering) -> None:
            await answering.whole(200, f"# HELP up Up\n# TYPE up gauge\nup {value}\n".encode())

        return behave

    async with fake_workers("a", "b", "c") as workers:
        for value, worker in enumerate(workers[:2]):
            worker.gets["/metrics"] = tells(value)
        config = router_config(*workers)
        async with running_router(msgspec.structs.replace(config, owns_workers=True)) as running:
            text = (await running.client.get("/metrics")).text
        async with running_router(config) as running:
            alone = (await running.client.get("/metrics")).text
    [family] = [family for family in text_string_to_metric_families(text) if family.name == "up"]
    assert [(sample.labels["worker"], sample.value) for sample in family.samples] == [("w0", 0), ("w1", 1)]
    assert "pagefall_router_info" in text
    assert "up{" not in alone


def publishing(model: str) -> Behaviour:
    """KV events of an empty cache, up to number 7."""

    async def publish(seen: Seen, answering: Answering) -> None:
        hello = Hello(
            epoch="e",
            number=7,
            model=model,
            namespace="6d" * 32,
            page_size=16,
            has_snapshot=True,
            store="s",
            num_device_pages=100,
        )
        await answering.begin("application/x-ndjson")
        await answering.chunk(encode_line(hello) + encode_line(SnapshotEnd(number=7)))
        await answering.until_left()

    return publish


async def test_what_is_read_of_a_workers_events_is_told() -> None:
    routing = RoutingConfig(policy="cache_aware")
    async with fake_workers("a", "b") as [one, other]:
        one.gets["/cache/events"] = publishing("any")
        async with running_router(router_config(one, other, routing=routing)) as running:
            workers: list[dict[str, Any]] = []
            with anyio.fail_after(30):  # one that becomes ready is asked again, even if it has said no
                while [worker["events"]["status"] for worker in workers] != ["live", "unsupported"]:
                    workers = document(await running.client.get("/router/workers"))["workers"]
            metrics = (await running.client.get("/metrics")).text
    nothing = {"num_gaps": 0, "last_error": None}
    assert [worker["events"] for worker in workers] == [
        {"connected": True, "status": "live", "last_number": 7, "store": "s", "num_device_tokens": 1600, **nothing},
        {
            "connected": False,
            "status": "unsupported",
            "last_number": None,
            "store": None,
            "num_device_tokens": None,
            **nothing,
        },
    ]
    assert 'pagefall_router_events_connected{worker="w0"} 1.0' in metrics
    assert 'pagefall_router_events_connected{worker="w1"} 0.0' in metrics


async def test_events_are_asked_for_when_the_worker_is_healthy_and_not_before() -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.gets["/cache/events"] = publishing("any")
        other.gets["/health"] = status(503)
        config = router_config(one, routing=RoutingConfig(policy="cache_aware"))
        async with running_router(config) as running:
            added = await running.client.post("/router/workers", json={"url": other.url})
            assert added.status_code == 201
            await until(lambda: len(one.seen) > 0)
            await anyio.sleep(0.2)
            assert [seen.path for seen in other.seen] == []
            del other.gets["/health"]
            await until(lambda: [seen.path for seen in other.seen if seen.path == "/cache/events"] != [])


async def test_with_no_tokenizer_but_the_embedded_models_only_its_events_are_taken() -> None:
    async def status_with(worker: FakeWorker, routing: RoutingConfig, encoder: PromptEncoder) -> str:
        async with running_router(router_config(worker, routing=routing), encoder) as running:
            subscriptions = running.router.subscriptions
            assert subscriptions is not None
            await until(lambda: [state.status in ("live", "other_model") for state in subscriptions.states] == [True])
            return subscriptions.states[0].status

    with PromptEncoder(byte_tokenizer(), max_waiting=10) as encoder:
        async with fake_workers("a") as [worker]:
            worker.gets["/cache/events"] = publishing("other")
            assert await status_with(worker, RoutingConfig(), encoder) == "other_model"
            assert await status_with(worker, RoutingConfig(tokenizer_path="named"), encoder) == "live"
            assert await status_with(worker, RoutingConfig(served_model_name="other"), encoder) == "live"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_kept_response_is_found_at_whichever_worker_has_it(method: str) -> None:
    async with fake_workers("a", "b") as [one, other]:
        other.paths["/v1/responses/resp_1"] = {"id": "resp_1"}
        async with running_router(router_config(one, other)) as running:
            kept = document(await running.client.request(method, "/v1/responses/resp_1"))
            missing = document(await running.client.request(method, "/v1/responses/resp_2"), 404)["error"]
    assert kept == {"id": "resp_1"}
    assert missing["message"] == "no such path"
    asked = [(seen.method, seen.target) for seen in other.seen if seen.path.startswith("/v1/responses/")]
    assert asked == [(method, "/v1/responses/resp_1"), (method, "/v1/responses/resp_2")]


async def test_a_clients_key_in_anthropics_header_reaches_the_workers_too() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.seen.clear()
        document(await running.client.get("/v1/models", headers={"x-api-key": "mine"}))
        assert [seen.headers.get("x-api-key") for seen in worker.seen if seen.path == "/v1/models"] == ["mine"]


async def test_of_what_clients_write_only_the_beginning_is_remembered() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        await running.client.post(f"/v1/{'p' * 500}", content=json.dumps({"model": "m" * 100_000}))
        [decision] = running.router.decisions
    assert decision.model == "m" * 200
    assert len(decision.path) == 200


async def test_the_log_of_requests_has_a_line_of_json_for_each(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(str(path))
    async with fake_workers("a") as [worker], running_router(router_config(worker), observers=[log]) as running:
        await running.chat(x_request_id="one")
        await running.client.post("/v1/embeddings", content=b"{}", headers={"x-request-id": "two"})
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["request_id"], line["path"], line["status"]) for line in lines] == [
        ("one", CHAT, 200),
        ("two", "/v1/embeddings", 200),
    ]


async def test_only_the_last_decisions_are_remembered() -> None:
    telling = TellingConfig(explain_max_requests=3)
    async with fake_workers("a") as [worker], running_router(router_config(worker, telling=telling)) as running:
        for index in range(9):
            await running.chat(x_request_id=f"id-{index}")
        decisions = running.router.decisions
        assert [decision.request_id for decision in decisions] == ["id-8", "id-7", "id-6"]
        assert decisions.get("id-0") is None


async def test_a_conversation_goes_where_its_beginning_went() -> None:
    routing = RoutingConfig(policy="cache_aware")
    with PromptEncoder(byte_tokenizer(), max_waiting=10) as encoder:
        async with (
            fake_workers("a", "b", "c") as workers,
            running_router(router_config(*workers, routing=routing), encoder) as running,
        ):
            for worker in workers:
                worker.behaviour = _hold_back
            names = [
                [(await _complete(running, f"{topic * 400} {turn}")).headers["x-pagefall-worker"] for turn in range(3)]
                for topic in "xyz"
            ]
            explained = [decision.is_tokenised for decision in running.router.decisions]
    assert [len(set(turns)) for turns in names] == [1, 1, 1]
    assert len({turns[0] for turns in names}) == 3
    assert all(explained)


async def _complete(running: RunningRouter, prompt: str) -> httpx.Response:
    return await running.client.post("/v1/completions", json={"model": "fake", "prompt": prompt})


async def _hold_back(seen: Seen, answering: Answering) -> None:
    await answering.whole(200, b"{}")
