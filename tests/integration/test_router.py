"""The router before two real servers: routing by what they have, their answers together, and one that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import openai
import pytest
from tests.real_server import RealServer
from tests.router_rig import RunningRouter, running_router, until

from pagefall.cli.router_tokenizer import load_encoder
from pagefall.config import HttpConfig
from pagefall.router.config import RouterConfig, RoutingConfig, WorkersConfig

pytestmark = pytest.mark.anyio

FLAGS = ("--max-total-tokens", "2048", "--context-length", "1024", "--compile", "off", "--enable-hierarchical-cache")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RealServer]]:
    with ThreadPoolExecutor() as threads:
        starts = [threads.submit(partial(RealServer, tmp_path / f"{name}.log", *FLAGS)) for name in "ab"]
    started = [start.result() for start in starts if start.exception() is None]
    try:
        assert len(started) == len(starts), [start.exception() for start in starts]
        yield started
    finally:
        for server in started:
            server.process.kill()
            server.wait()


async def test_two_servers_are_one(servers: list[RealServer]) -> None:
    config = RouterConfig(
        workers=WorkersConfig(worker_urls=tuple(server.url for server in servers), health_interval=0.2),
        routing=RoutingConfig(policy="cache_aware"),
        http=HttpConfig(port=0),
    )
    encoder = load_encoder(config.routing)
    assert encoder is not None
    with encoder:
        async with running_router(config, encoder) as running:
            await _until_events_are_read(running)
            async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client:
                await _conversations_stay_where_they_are(running, client)
                await _what_they_say_together(running)
                served_by = running.router.registry.workers[0]
                servers[0].process.kill()
                for _ in range(3):
                    assert (await _ask(client, "Who is left?"))[0] == "w1"
                await running.wait_for(served_by.name, "unhealthy")


async def _conversations_stay_where_they_are(running: RunningRouter, client: openai.AsyncOpenAI) -> None:
    for topic in ("rivers", "mountains"):
        first, *others = [await _ask(client, f"Tell me about {topic}. " * 20 + "!" * turn) for turn in range(3)]
        assert {worker for worker, _ in others} == {first[0]}
        assert all(cached > 60 for _, cached in others)
    decision = next(iter(running.router.decisions))
    assert decision.is_tokenised
    assert abs(decision.num_expected_cached_tokens - (decision.num_cached_tokens or 0)) <= 16


async def _what_they_say_together(running: RunningRouter) -> None:
    http = running.client
    models = (await http.get("/v1/models")).json()["data"]
    stats = (await http.get("/cache/stats")).json()
    wanted = next(iter(running.router.decisions)).request_id
    explained = (await http.get(f"/cache/explain/{wanted}")).json()
    flushed = (await http.post("/flush_cache")).json()
    tokens = await http.post("/tokenize", json={"prompt": "one two three"})
    assert [model["id"] for model in models] == ["SmolLM2-135M-Instruct"]
    assert stats["num_answered"] == 2
    assert stats["num_prompt_tokens"] == sum(worker["num_prompt_tokens"] for worker in stats["workers"].values())
    assert explained["http_request_id"] == explained["routing"]["request_id"] == wanted
    assert flushed["num_pages"]["device"] > 0
    assert tokens.json()["count"] == 3


async def _ask(client: openai.AsyncOpenAI, content: str) -> tuple[str, int]:
    """Streams. Who answered, and how many tokens were cached there."""
    stream = await client.chat.completions.create(
        model="SmolLM2-135M-Instruct",
        messages=[{"role": "user", "content": content}],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return stream.response.headers["x-pagefall-worker"], usage.prompt_tokens_details.cached_tokens or 0


async def _until_events_are_read(running: RunningRouter) -> None:
    """Of servers that have them."""
    subscriptions = running.router.subscriptions
    assert subscriptions is not None
    await until(lambda: all(state.status in ("live", "unsupported") for state in subscriptions.states))
