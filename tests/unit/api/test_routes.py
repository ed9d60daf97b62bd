from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.api.fake_engine import MODEL, FakeEngine

from pagefall.api.app import create_app
from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/nowhere", "/v1", "/v1/embeddings", "/v1/chat/completions/", "/health/", "/x%0ay"])
async def test_a_path_that_does_not_exist_is_a_404_in_openais_shape(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"].startswith("Invalid URL (GET /")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET"), ("PUT", "/flush_cache", "POST")],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_one(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    response = await client.request(method, path)
    assert response.status_code == 405
    assert response.json()["error"]["message"] == f"Not allowed to {method} on {path}"
    assert allowed in response.headers["allow"]


async def test_the_models_are_the_one_that_is_served(client: httpx.AsyncClient) -> None:
    body = (await client.get("/v1/models")).json()
    [model] = body["data"]
    assert body["object"] == "list"
    assert model == {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "pagefall",
        "root": None,
        "max_model_len": 1000,
    }
    assert (await client.get(f"/v1/models/{MODEL}")).json() == model


@pytest.mark.parametrize("name", ["other", "", "a/b/c"])
async def test_another_model_is_not_found(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(f"/v1/models/{name}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_health_follows_the_engine_and_life_does_not(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/health")).status_code == 200
    engine.ready = False
    response = await client.get("/health")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
    assert (await client.get("/health/live")).status_code == 200


async def test_text_is_tokenized_and_back(client: httpx.AsyncClient) -> None:
    tokens = (await client.post("/tokenize", json={"prompt": "abc"})).json()
    assert tokens == {"tokens": [97, 98, 99], "count": 3, "max_model_len": 1000}
    assert (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json() == {"text": "abc"}


async def test_a_conversation_is_tokenized_as_the_chat_endpoint_would(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "abcd"}, {"role": "assistant", "content": "ab"}]
    response = await client.post("/tokenize", json={"messages": messages, "continue_final_message": True})
    assert response.json()["tokens"] == [4, 2]


async def test_nothing_may_be_tokenized_and_back(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"text": ""}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_flushing_the_cache_answers_with_the_pages_dropped(client: httpx.AsyncClient, method: str) -> None:
    response = await client.request(method, "/flush_cache")
    assert (response.status_code, response.json()) == (200, {"num_pages": {"device": 7, "host": 5}})


async def test_a_flush_is_of_the_tiers_that_are_named(client: httpx.AsyncClient) -> None:
    assert (await client.post("/flush_cache?tiers=host")).json() == {"num_pages": {"host": 5}}
    response = await client.post("/flush_cache", params={"tiers": "device, storage"})
    assert response.json() == {"num_pages": {"device": 7, "storage": 3}}
    response = await client.post("/flush_cache?tiers=device&tiers=storage")
    assert response.json() == {"num_pages": {"device": 7, "storage": 3}}


@pytest.mark.parametrize(
    ("query", "param", "words"),
    [
        ("tiers=disk", "tiers", "'disk' is not one of device, host, storage"),
        ("tiers=device,,host", "tiers", "'' is not one of device, host, storage"),
        ("tiers=", "tiers", "'' is not one of device, host, storage"),
        ("tier=host", "tier", "The only one is 'tiers'"),
    ],
)
async def test_a_flush_of_what_is_no_tier_is_refused(
    client: httpx.AsyncClient, query: str, param: str, words: str
) -> None:
    response = await client.post(f"/flush_cache?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


async def test_a_store_that_was_not_cleared_is_an_error_beside_the_counts(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.storage_error = "the disk is gone"
    response = await client.post("/flush_cache?tiers=device,storage")
    assert response.status_code == 503
    assert response.json()["num_pages"] == {"device": 7, "storage": 3}
    assert response.json()["error"]["message"] == "The store was not cleared: the disk is gone"
    assert (await client.post("/flush_cache?tiers=device")).status_code == 200


async def test_metrics_are_prometheus_text_of_the_engines_snapshot(client: httpx.AsyncClient) -> None:
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["pagefall_num_running_reqs",] == 2
    assert values["pagefall_num_queue_reqs",] == 5
    assert values["pagefall_generated_tokens_total",] == 99
    states = ("free", "leased", "cached", "pinned")
    assert {state: values["pagefall_pages", state, "device"] for state in states} == {
        "free": 3,
        "leased": 1,
        "cached": 6,
        "pinned": 2,
    }


async def test_the_root_points_the_way(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert response.status_code == 200
    assert "/v1/chat/completions" in response.text


async def test_metrics_that_are_switched_off_are_a_404_that_says_so(engine: FakeEngine) -> None:
    transport = httpx.ASGITransport(create_app(engine, HttpConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        response = await client.get("/metrics")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "metrics_disabled")
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "--disable-metrics" in response.json()["error"]["message"]
