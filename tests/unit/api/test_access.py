from __future__ import annotations

import logging

import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, FakeEngine, http_client

from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("header", ["Bearer sk-secret", "bearer sk-secret", "Bearer  sk-secret "])
async def test_the_right_key_is_let_in(header: str) -> None:
    async with http_client(FakeEngine(), HttpConfig(api_key="sk-secret")) as client:
        response = await client.get("/v1/models", headers={"authorization": header})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Bearer sk-secret2", "Basic sk-secret", "sk-secret", b"Bearer \xff"]
)
async def test_any_other_key_is_a_401_in_openais_shape(header: str | bytes | None) -> None:
    async with http_client(FakeEngine(), HttpConfig(api_key="sk-secret")) as client:
        headers = {} if header is None else {b"authorization": header if isinstance(header, bytes) else header.encode()}
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/nowhere")):
            response = await client.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/", "/console/app.js", "/health", "/health/live", "/metrics"])
async def test_probes_scrapers_and_the_empty_console_need_no_key(path: str) -> None:
    async with http_client(FakeEngine(), HttpConfig(api_key="sk-secret")) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/cache/stats", "/cache/tree", "/console", "/flush_cache", "/health/", "/metrics/x", "//metrics"],
)
async def test_every_other_path_needs_the_key(path: str) -> None:
    async with http_client(FakeEngine(), HttpConfig(api_key="sk-secret")) as client:
        assert (await client.get(f"http://server{path}")).status_code == 401


async def test_a_key_may_be_any_text() -> None:
    async with http_client(FakeEngine(), HttpConfig(api_key="열쇠")) as client:
        response = await client.get("/v1/models", headers={b"authorization": "Bearer 열쇠".encode()})
    assert response.status_code == 200


async def test_a_sane_request_id_is_echoed(client: httpx.AsyncClient) -> None:
    response = await client.get("/health", headers={"x-request-id": "trace-1:a/b"})
    assert response.headers["x-request-id"] == "trace-1:a/b"


@pytest.mark.parametrize("wanted", ["", "a b", "x" * 129, "<script>", "a\tb"])
async def test_any_other_request_id_is_replaced(client: httpx.AsyncClient, wanted: str) -> None:
    response = await client.get("/health", headers={"x-request-id": wanted})
    assert len(response.headers["x-request-id"]) == 32


async def test_every_kind_of_answer_has_a_request_id(client: httpx.AsyncClient) -> None:
    for response in (
        await client.get("/nowhere"),
        await client.post("/v1/chat/completions", json={}),
        await client.post("/v1/chat/completions", json=BODY | {"stream": True}),
    ):
        assert response.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_one_line_a_request_says_what_it_used(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.set_level(logging.INFO, "pagefall")
    await client.post("/v1/chat/completions", json=BODY | {"stream": stream}, headers={"x-request-id": "me"})
    [record] = [record for record in caplog.records if record.name == "pagefall.access"]
    message = record.getMessage()
    assert message.startswith("POST /v1/chat/completions 200 ")
    assert message.endswith("ms prompt=1 cached=3 generated=6 id=me")


async def test_a_path_cannot_forge_a_line_of_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pagefall")
    await client.get("/a%0aPOST /b 200")
    assert all("\n" not in record.getMessage() for record in caplog.records)


async def test_a_bug_is_logged_with_its_traceback_and_not_told(
    client: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.refusal = ZeroDivisionError("secret detail")
    response = await client.post("/v1/chat/completions", json=BODY)
    assert response.status_code == 500
    assert response.json() == {
        "error": {
            "message": "The server had an error while processing your request.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
    }
    assert response.headers["x-request-id"] in caplog.text
    assert "secret detail" in caplog.text
    assert "ZeroDivisionError" in caplog.text
