from __future__ import annotations

import random

import pytest

from pagefall.bench.client import RefusedError, connect
from pagefall.bench.replay import replay
from pagefall.bench.workloads import MultiTurn, multi_turn

from .conftest import FakeServer, Serve

pytestmark = pytest.mark.anyio

WORKLOAD = MultiTurn(sessions=4, turns=3, first_tokens=40, turn_tokens=8, output_tokens=2)


async def test_every_request_is_sent_once_and_a_round_waits_for_the_one_before(serve: Serve) -> None:
    fake = FakeServer(wait=0.005, cached_tokens=16)
    rounds = multi_turn(WORKLOAD, random.Random(0))
    answered = []
    async with serve(fake) as http:
        client = await connect(http, model=None, rng=random.Random(1))
        num_probes = len(fake.bodies)
        run = await replay(client, rounds, output_tokens=2, parallel=2, on_answer=lambda: answered.append(1))
    sent = [tuple(body["prompt"]) for body in fake.bodies[num_probes:]]
    assert sorted(sent) == sorted(request.token_ids for requests in rounds for request in requests)
    assert [len(prompt) for prompt in sent] == [40] * 4 + [50] * 4 + [60] * 4
    assert len(run.samples) == len(answered) == 12
    assert {body["max_tokens"] for body in fake.bodies[num_probes:]} == {2}
    assert all(s.cached_tokens == 16 and s.num_output_tokens == 2 and len(s.gaps_seconds) == 1 for s in run.samples)
    assert 0 < max(sample.ttft_seconds for sample in run.samples) < run.seconds


async def test_as_many_requests_as_asked_for_are_under_way_at_once(serve: Serve) -> None:
    rounds = multi_turn(MultiTurn(sessions=8, turns=1, first_tokens=8), random.Random(0))
    seconds = {}
    for parallel in (1, 4):
        async with serve(FakeServer(wait=0.02)) as http:
            client = await connect(http, model=None, rng=random.Random(1))
            seconds[parallel] = (await replay(client, rounds, output_tokens=3, parallel=parallel)).seconds
    assert seconds[1] >= 8 * 3 * 0.02
    assert seconds[4] < seconds[1] / 2


async def test_a_refused_request_ends_the_run(serve: Serve) -> None:
    rounds = multi_turn(WORKLOAD, random.Random(0))
    async with serve(FakeServer(context_length=55)) as http:
        client = await connect(http, model=None, rng=random.Random(1))
        with pytest.raises(RefusedError, match="longer than the context"):
            await replay(client, rounds, output_tokens=2, parallel=2)
