from __future__ import annotations

import random

import httpx
import pytest

from pagefall.bench.client import RefusedError, connect
from pagefall.bench.prompts import TextPrompts, TokenPrompts
from pagefall.errors import PagefallError

from .conftest import FakeServer, Serve

pytestmark = pytest.mark.anyio

RNG = random.Random(0)


async def test_a_server_that_takes_everything_gets_token_ids_and_all_fields(serve: Serve) -> None:
    fake = FakeServer()
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(50), max_tokens=7)
    assert client.model == "fake-model"
    body = fake.bodies[-1]
    assert len(body["prompt"]) == 50
    assert (body["ignore_eos"], body["stream_options"]) == (True, {"include_usage": True})
    assert trace.num_output_tokens == len(trace.arrivals) == 7, "the event with the finish reason is no token"
    assert len(trace.gaps_seconds) == 6
    assert 0 < trace.ttft_seconds < 5


async def test_refused_fields_are_dropped_once_and_the_rest_kept(serve: Serve) -> None:
    fake = FakeServer(refuses=lambda body: "ignore_eos" in body)
    async with serve(fake) as http:
        client = await connect(http, model="named", rng=RNG)
        num_probes = len(fake.bodies)
        await client.stream(client.prompts.make(5), max_tokens=1)
    assert isinstance(client.prompts, TokenPrompts)
    assert len(fake.bodies) == num_probes + 1
    assert fake.bodies[-1]["model"] == "named"
    assert "ignore_eos" not in fake.bodies[-1]
    assert "stream_options" in fake.bodies[-1]


async def test_a_server_without_token_ids_gets_text_sized_by_its_own_count(serve: Serve) -> None:
    fake = FakeServer(refuses=lambda body: isinstance(body["prompt"], list), tokens_per_word=3)
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=RNG)
        await client.stream(client.prompts.make(3000), max_tokens=1)
    assert isinstance(client.prompts, TextPrompts)
    assert len(fake.bodies[-1]["prompt"].split()) == 1000


async def test_tokens_are_counted_by_usage_when_events_bring_several(serve: Serve) -> None:
    async with serve(FakeServer(tokens_per_event=4)) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(5), max_tokens=8)
    assert trace.num_output_tokens == 8
    assert len(trace.arrivals) == 2


async def test_what_the_usage_tells_of_the_prompt_is_kept(serve: Serve) -> None:
    async with serve(FakeServer(cached_tokens=16)) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(50), max_tokens=1)
    assert (trace.num_prompt_tokens, trace.cached_tokens) == (50, 16)
    assert trace.cached_tokens_by_tier == {"device": 0, "host": 16, "storage": 0}


async def test_a_usage_that_is_silent_about_caches_leaves_them_unknown(serve: Serve) -> None:
    async with serve(FakeServer()) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(50), max_tokens=1)
    assert trace.num_prompt_tokens == 50
    assert (trace.cached_tokens, trace.cached_tokens_by_tier) == (None, None)


async def test_tokens_are_events_where_the_server_reports_no_usage(serve: Serve) -> None:
    async with serve(FakeServer(refuses=lambda body: "stream_options" in body)) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(5), max_tokens=8)
    assert trace.num_output_tokens == 8


async def test_hanging_up_closes_the_connection(serve: Serve) -> None:
    fake = FakeServer(wait=0.001)
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=RNG)
        trace = await client.stream(client.prompts.make(5), max_tokens=5000, keep_going=lambda n: n < 3)
    assert len(trace.arrivals) == 3
    assert fake.num_hung_up == 1


async def test_a_prompt_over_the_context_is_refused_with_the_servers_words(serve: Serve) -> None:
    async with serve(FakeServer(context_length=100)) as http:
        client = await connect(http, model=None, rng=RNG)
        with pytest.raises(RefusedError, match=r"status 400: .*longer than the context"):
            await client.stream(client.prompts.make(100), max_tokens=1)


async def test_a_server_that_answers_500_to_an_unknown_form_is_asked_in_another(serve: Serve) -> None:
    async with serve(FakeServer(refuses=lambda body: isinstance(body["prompt"], list), refusal_status=500)) as http:
        client = await connect(http, model=None, rng=RNG)
    assert isinstance(client.prompts, TextPrompts)


async def test_a_missing_model_is_asked_for_once(serve: Serve) -> None:
    fake = FakeServer(refuses=lambda _: True, refusal_status=404)
    async with serve(fake) as http:
        with pytest.raises(RefusedError, match="status 404"):
            await connect(http, model="absent", rng=RNG)
    assert len(fake.bodies) == 1


async def test_a_server_that_refuses_every_form_is_named(serve: Serve) -> None:
    async with serve(FakeServer(refuses=lambda _: True)) as http:
        with pytest.raises(RefusedError, match="status 422"):
            await connect(http, model=None, rng=RNG)


async def test_a_server_that_is_not_there_is_named() -> None:
    async with httpx.AsyncClient(base_url="http://127.0.0.1:1") as http:
        with pytest.raises(PagefallError, match=r"http://127\.0\.0\.1:1"):
            await connect(http, model=None, rng=RNG)
