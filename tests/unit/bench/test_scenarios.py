from __future__ import annotations

import random

import anyio
import pytest

from pagefall.bench.client import Trace, connect
from pagefall.bench.engine import measure
from pagefall.bench.scenarios import (
    gaps_before,
    gaps_beside,
    inter_token_latency,
    interference,
    throughput,
    together,
    ttft,
    worst_gap,
)
from pagefall.errors import PagefallError

from .conftest import FakeServer, Serve

pytestmark = pytest.mark.anyio


def trace(sent_at: float, *arrivals: float) -> Trace:
    return Trace(sent_at=sent_at, arrivals=arrivals, num_output_tokens=len(arrivals))


def test_only_gaps_that_touch_the_read_count_as_worst() -> None:
    running = trace(0.0, 1.0, 9.0, 10.0, 13.0, 14.0, 30.0)
    assert worst_gap(running, trace(10.5, 13.5)) == (3000.0,)
    assert worst_gap(running, trace(9.5, 9.8)) == (1000.0,)


def test_the_gaps_before_a_read_end_before_it_and_those_beside_it_touch_it() -> None:
    running = trace(0.0, 1.0, 2.0, 4.0, 7.0, 11.0)
    read = trace(3.0, 5.0)
    assert gaps_before(running, read) == (1000.0,)
    assert gaps_beside(running, read) == (2000.0, 3000.0)


def test_a_stream_that_ended_before_the_read_gives_no_gap() -> None:
    assert worst_gap(trace(0.0, 1.0, 2.0), trace(1.5, 3.0)) == ()


async def test_ttft_sends_the_same_prompt_twice_and_a_new_one_each_run(serve: Serve) -> None:
    fake = FakeServer()
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=random.Random(0))
        scenario = ttft(300)
        for _ in range(2):
            cold, warm = await scenario.run(client)
            assert len(cold) == len(warm) == 1
    prompts = [body["prompt"] for body in fake.bodies[-4:]]
    assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
    assert [len(prompt) for prompt in prompts] == [300] * 4


async def test_every_gap_of_a_lone_stream_is_a_sample(serve: Serve) -> None:
    async with serve(FakeServer()) as http:
        client = await connect(http, model=None, rng=random.Random(0))
        medians, p99s = await inter_token_latency(10, 64).run(client)
    assert len(medians) == len(p99s) == 63


async def test_throughput_runs_its_streams_at_once(serve: Serve) -> None:
    async with serve(FakeServer(wait=0.02)) as http:
        client = await connect(http, model=None, rng=random.Random(0))
        ((tokens_per_second,),) = await throughput(8, 10, 10).run(client)
    assert 50 < tokens_per_second <= 8 / 0.02, "one after the other they would make 50 at most"


async def test_interference_hangs_up_once_the_long_prompt_is_read(serve: Serve) -> None:
    fake = FakeServer(wait=0.002)
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=random.Random(0))
        gaps, ttfts = await interference(600, 10).run(client)
    assert len(gaps) == len(ttfts) == 1
    assert fake.num_hung_up == 1


async def test_measure_alternates_who_goes_first_and_notes_a_refusal(serve: Serve) -> None:
    large, small = FakeServer(), FakeServer(context_length=100)
    async with serve(large) as large_http, serve(small) as small_http:
        rng = random.Random(0)
        clients = {
            "self": await connect(large_http, model=None, rng=rng),
            "peer": await connect(small_http, model=None, rng=rng),
        }
        cold, warm = await measure(ttft(200), clients, repeats=3)
    assert [len(cold.samples[label]) for label in ("self", "peer")] == [3, 0]
    assert "longer than the context" in warm.notes["peer"]


async def test_one_failure_cancels_the_others_and_comes_out_unwrapped() -> None:
    cancelled = anyio.Event()

    async def waits() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async def fails() -> None:
        raise PagefallError("gone")

    with pytest.raises(PagefallError, match="gone"):
        await together(waits, fails)
    assert cancelled.is_set()
