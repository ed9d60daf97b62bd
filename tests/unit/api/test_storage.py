from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.config import HttpConfig
from pagefall.errors import RequestError
from pagefall.messages import ControllerStats

pytestmark = pytest.mark.anyio

ATTACHED = ControllerStats(breaker="closed", storage_backend="file", storage_description="files in /x")
FILE = {"backend": "file", "extra_config": {"path": "/x"}}
NO_STORE = {"attached": False, "backend": None, "description": None, "breaker": None}
FILE_STORE = {"attached": True, "backend": "file", "description": "files in /x", "breaker": "closed"}


async def test_the_store_is_shown(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tiers = ControllerStats()
    assert (await client.get("/cache/storage")).json() == NO_STORE
    engine.tiers = ATTACHED
    response = await client.get("/cache/storage")
    assert (response.status_code, response.json()) == (200, FILE_STORE)


async def test_a_store_is_attached_with_its_settings_and_detached(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.tiers, engine.tiers_after = ControllerStats(), ATTACHED
    response = await client.put("/cache/storage", json=FILE)
    assert (response.status_code, response.json()) == (200, FILE_STORE)
    engine.tiers_after = ControllerStats()
    response = await client.delete("/cache/storage")
    assert (response.status_code, response.json()) == (200, NO_STORE)
    assert engine.changes == [("file", {"path": "/x"}), None]


async def test_settings_may_be_left_out(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tiers = ControllerStats()
    assert (await client.put("/cache/storage", json={"backend": "memory"})).status_code == 200
    assert engine.changes == [("memory", {})]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "backend", "Missing required parameter: 'backend'."),
        ({"backend": ""}, "backend", "the name is empty"),
        ({"backend": 3}, "backend", "Invalid value for 'backend'"),
        ({"backend": "file", "extra_config": '{"path": "/x"}'}, "extra_config", "Invalid value for 'extra_config'"),
        ({"backend": "file", "extra_conf": {}}, "extra_conf", "Did you mean 'extra_config'?"),
    ],
)
async def test_a_body_that_cannot_be_used_names_the_field(
    client: httpx.AsyncClient, engine: FakeEngine, body: dict[str, Any], param: str, words: str
) -> None:
    engine.tiers = ControllerStats()
    response = await client.put("/cache/storage", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert engine.changes == []


async def test_a_store_that_the_engine_refuses_is_that_error(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tiers = ControllerStats()
    engine.refusal = RequestError("it is down", status=503, type="service_unavailable_error", code="storage_error")
    response = await client.put("/cache/storage", json=FILE)
    assert (response.status_code, response.json()["error"]["message"]) == (503, "it is down")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_without_lower_tiers_the_error_names_the_flag(client: httpx.AsyncClient, method: str) -> None:
    response = await client.request(method, "/cache/storage", json=FILE)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "hierarchical_cache_disabled"
    assert "--enable-hierarchical-cache" in error["message"]


async def test_another_method_is_a_405_that_names_the_right_ones(client: httpx.AsyncClient) -> None:
    response = await client.post("/cache/storage", json=FILE)
    assert response.status_code == 405
    assert {"GET", "PUT", "DELETE"} <= {method.strip() for method in response.headers["allow"].split(",")}


async def asked(config: HttpConfig, path: str, key: str | None) -> httpx.Response:
    engine = FakeEngine()
    engine.tiers = ATTACHED
    async with http_client(engine, config) as client:
        return await client.get(path, headers={} if key is None else {"authorization": f"Bearer {key}"})


BOTH = HttpConfig(api_key="sk-client", admin_api_key="sk-admin")


async def test_the_admin_key_opens_everything() -> None:
    for path in ("/cache/storage", "/v1/models"):
        assert (await asked(BOTH, path, "sk-admin")).status_code == 200


async def test_the_clients_key_does_not_change_the_server() -> None:
    assert (await asked(BOTH, "/v1/models", "sk-client")).status_code == 200
    response = await asked(BOTH, "/cache/storage", "sk-client")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "admin_key_required")
    assert "Send the admin key" in response.json()["error"]["message"]


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_without_a_key_nothing_is_told(key: str | None) -> None:
    response = await asked(BOTH, "/cache/storage", key)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_where_no_admin_key_is_set_the_clients_is_told_which_flag_to_set() -> None:
    config = HttpConfig(api_key="sk-client")
    assert (await asked(config, "/cache/storage", None)).status_code == 401
    response = await asked(config, "/cache/storage", "sk-client")
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    assert "--admin-api-key" in response.json()["error"]["message"]


@pytest.mark.parametrize("query", ["?tiers=storage", "?tiers=device,%73torage", "?tiers=device&tiers=storage"])
async def test_the_store_is_flushed_by_operators_alone_where_there_is_one(query: str) -> None:
    for key, status in (("sk-client", 403), ("sk-admin", 200), (None, 401)):
        assert (await asked(BOTH, f"/flush_cache{query}", key)).status_code == status
    assert (await asked(BOTH, "/flush_cache?tiers=device", "sk-client")).status_code == 200
    assert (await asked(HttpConfig(api_key="sk-client"), f"/flush_cache{query}", "sk-client")).status_code == 200


async def test_an_admin_key_alone_guards_the_store_alone() -> None:
    config = HttpConfig(admin_api_key="sk-admin")
    assert (await asked(config, "/v1/models", None)).status_code == 200
    assert (await asked(config, "/cache/storage", None)).status_code == 401
    assert (await asked(config, "/cache/storage", "sk-admin")).status_code == 200


async def test_without_keys_everything_is_open() -> None:
    assert (await asked(HttpConfig(), "/cache/storage", None)).status_code == 200
