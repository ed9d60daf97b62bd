from __future__ import annotations

import anyio
import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, http_client, listening
from tests.unit.api.sse import events

from pagefall.config import HttpConfig
from pagefall.messages import RequestId

pytestmark = pytest.mark.anyio

BODY = {"model": MODEL, "prompt": "Hi", "stream": True}
COMMENT = ": keep-alive\n\n"
OFTEN = {"x-stream-keepalive-seconds": "0.01"}


class SilentEngine(FakeEngine):
    """Its first delta waits for `heard`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = anyio.Event()

    async def before_delta(self, request_id: RequestId) -> None:
        await self.heard.wait()
        await super().before_delta(request_id)


@pytest.mark.parametrize(
    ("config", "headers"),
    [
        (HttpConfig(), OFTEN),
        (HttpConfig(stream_keepalive_seconds=0.01), {}),
        (HttpConfig(stream_keepalive_seconds=9), OFTEN),
    ],
)
async def test_a_stream_that_waits_sends_comments_and_then_its_events(
    config: HttpConfig, headers: dict[str, str]
) -> None:
    engine = SilentEngine()
    text = ""
    async with (
        listening(engine, config) as (host, port),
        httpx.AsyncClient() as client,
        client.stream("POST", f"http://{host}:{port}/v1/completions", json=BODY, headers=headers) as answer,
    ):
        async for part in answer.aiter_text():
            text += part
            if text.count(COMMENT) == 2:
                engine.heard.set()
    assert text.startswith(COMMENT * 2)
    assert text.endswith("data: [DONE]\n\n")
    assert text.replace(COMMENT, "").count("data: ") == len(WORDS) + 1 - WORDS[:-1].count("")


async def test_what_is_no_stream_gets_no_comments() -> None:
    async with http_client(FakeEngine(), HttpConfig(stream_keepalive_seconds=0.01)) as client:
        assert (await client.get("/v1/models")).json()["object"] == "list"
        assert len(events(await client.post("/v1/completions", json=BODY))) == len(WORDS)


@pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "0.001"])
async def test_a_pace_that_cannot_be_is_refused(client: httpx.AsyncClient, value: str) -> None:
    response = await client.post("/v1/completions", json=BODY, headers={"x-stream-keepalive-seconds": value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-stream-keepalive-seconds")


async def test_a_stream_that_is_given_up_while_it_waits_ends_its_request() -> None:
    engine = SilentEngine()
    async with listening(engine) as (host, port), httpx.AsyncClient() as client:
        url = f"http://{host}:{port}/v1/completions"
        async with client.stream("POST", url, json=BODY, headers=OFTEN) as answer:
            async for _ in answer.aiter_text():
                break
        with anyio.fail_after(5):
            while not engine.aborted:
                await anyio.sleep(0.005)
