"""Pages of other origins, which a browser lets send blind requests to any server."""

from __future__ import annotations

import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = b'{"messages": [{"role": "user", "content": "Hi"}]}'
PAGE = "https://evil.example"

FOREIGN = [
    pytest.param({"origin": PAGE, "sec-fetch-site": "cross-site"}, id="another site"),
    pytest.param({"origin": "http://server:3000", "sec-fetch-site": "same-site"}, id="another port"),
    pytest.param({"sec-fetch-site": "cross-site"}, id="without Origin"),
    pytest.param({"origin": PAGE}, id="without Sec-Fetch-Site"),
    pytest.param({"origin": "http://server:3000"}, id="another port without Sec-Fetch-Site"),
    pytest.param({"origin": "null"}, id="a page that hides its origin"),
]
OWN = [
    pytest.param({}, id="no browser"),
    pytest.param({"origin": "http://server", "sec-fetch-site": "same-origin"}, id="the console"),
    pytest.param({"origin": "https://llm.example", "sec-fetch-site": "same-origin"}, id="the console behind a proxy"),
    pytest.param({"origin": "http://server"}, id="the console without Sec-Fetch-Site"),
    pytest.param({"sec-fetch-site": "none"}, id="typed by a person"),
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_origin_changes_nothing(headers: dict[str, str]) -> None:
    engine = FakeEngine()
    async with http_client(engine) as client:
        answers = [
            await client.post(CHAT, content=BODY, headers=headers),
            await client.post("/flush_cache", headers=headers),
            await client.put("/cache/storage", content=b'{"backend": "memory"}', headers=headers),
            await client.delete("/cache/storage", headers=headers),
        ]
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (403, "cross_origin_request", "permission_error")
        assert "--cors-origins" in error["message"]
    assert (engine.requests, engine.changes) == ([], [])


@pytest.mark.parametrize("headers", OWN)
async def test_the_servers_own_page_and_all_that_is_no_browser_pass(headers: dict[str, str]) -> None:
    async with http_client(FakeEngine()) as client:
        assert (await client.post(CHAT, content=BODY, headers=headers)).status_code == 200
        assert (await client.post("/flush_cache", headers=headers)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_flushing_changes_something_whatever_the_method(method: str) -> None:
    async with http_client(FakeEngine()) as client:
        foreign = await client.request(method, "/flush_cache", headers={"sec-fetch-site": "cross-site"})
        assert foreign.status_code == 403
        assert (await client.request(method, "/flush_cache")).status_code == 200


async def test_reading_is_left_to_the_browser_to_refuse() -> None:
    async with http_client(FakeEngine()) as client:
        answer = await client.get("/v1/models", headers={"origin": PAGE, "sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origins", ["*", f"https://a.example, {PAGE}/"])
async def test_a_page_that_is_allowed_may_do_all(origins: str) -> None:
    headers = {"origin": PAGE, "sec-fetch-site": "cross-site"}
    async with http_client(FakeEngine(), HttpConfig(cors_origins=origins)) as client:
        answer = await client.post(CHAT, content=BODY, headers=headers)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) in ((200, "*"), (200, PAGE))
        assert (await client.post("/flush_cache", headers=headers)).status_code == 200


async def test_a_page_that_is_not_among_the_allowed_may_not() -> None:
    async with http_client(FakeEngine(), HttpConfig(cors_origins="https://a.example")) as client:
        assert (await client.post("/flush_cache", headers={"origin": PAGE})).status_code == 403


async def test_clients_of_anthropics_api_read_the_refusal() -> None:
    async with http_client(FakeEngine()) as client:
        answer = await client.post("/v1/messages", content=b"{}", headers={"origin": PAGE})
    assert (answer.status_code, answer.json()["type"], answer.json()["error"]["type"]) == (
        403,
        "error",
        "permission_error",
    )
