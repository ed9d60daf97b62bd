from __future__ import annotations

import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.config import HttpConfig

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example"
QUESTION = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.mark.parametrize("origins", ["*", PAGE, f"https://a.example, {PAGE}/"])
async def test_a_page_that_is_allowed_may_ask_without_a_key_and_then_send_one(origins: str) -> None:
    async with http_client(FakeEngine(), HttpConfig(cors_origins=origins, api_key="k")) as client:
        asked = await client.options(CHAT, headers=QUESTION)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] in ("*", PAGE)
        assert "authorization" in asked.headers["access-control-allow-headers"].lower()
        refused = await client.get("/v1/models", headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (
            401,
            asked.headers["access-control-allow-origin"],
        )
        answered = await client.get("/v1/models", headers={"origin": PAGE, "authorization": "Bearer k"})
        assert answered.status_code == 200
        assert "x-request-id" in answered.headers["access-control-expose-headers"]


async def test_other_pages_are_not_allowed() -> None:
    async with http_client(FakeEngine(), HttpConfig(cors_origins="https://other.example")) as client:
        assert (await client.options(CHAT, headers=QUESTION)).status_code == 400
        assert "access-control-allow-origin" not in (await client.get("/v1/models", headers={"origin": PAGE})).headers


async def test_without_the_flag_no_page_is_allowed() -> None:
    async with http_client(FakeEngine()) as client:
        asked = await client.options(CHAT, headers=QUESTION)
        assert (asked.status_code, asked.headers["allow"]) == (405, "POST")
        assert not [name for name in asked.headers if name.startswith("access-control")]


async def test_head_is_answered_like_get_without_a_body() -> None:
    async with http_client(FakeEngine()) as client:
        for path in ("/health", "/v1/models"):
            answer = await client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
