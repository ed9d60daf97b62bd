from __future__ import annotations

import math

import pytest

from pagefall.router.cost import CacheLoad, CostWeights, Speeds, TokenHits, fleet_speeds, request_cost
from pagefall.router.routing import WorkerId, WorkerView
from pagefall.router.speeds import MeasuredSpeeds

WEIGHTS = CostWeights(host_load=0.1, storage_load=0.5, displacement_weight=0.0)
FLEET = Speeds(1000.0, 0.01)


def view(*, queue: int = 0, running: int = 0, prefill: float | None = None, output: float | None = None) -> WorkerView:
    return WorkerView(
        worker_id=WorkerId("http://a"),
        num_outstanding=running,
        num_outstanding_prefill_tokens=queue,
        prefill_tokens_per_second=prefill,
        seconds_per_output=output,
    )


def seconds(worker: WorkerView, hits: TokenHits, num_tokens: int = 1000) -> float:
    return request_cost(worker, hits, num_tokens, CacheLoad(1.0), FLEET, WEIGHTS).ttft_seconds


def test_an_idle_worker_without_the_prompt_computes_all_of_it() -> None:
    assert seconds(view(), TokenHits()) == pytest.approx(1.0)


def test_the_queue_and_the_running_answers_come_on_top() -> None:
    assert seconds(view(queue=500, running=3), TokenHits()) == pytest.approx(1.53)


def test_a_device_hit_is_free_and_the_others_cost_their_loading() -> None:
    assert seconds(view(), TokenHits(900, 0, 0)) == pytest.approx(0.1)
    assert seconds(view(), TokenHits(0, 900, 0)) == pytest.approx(0.19)
    assert seconds(view(), TokenHits(0, 0, 900)) == pytest.approx(0.55)


def test_a_workers_own_speeds_come_before_those_of_the_fleet() -> None:
    assert seconds(view(prefill=2000.0), TokenHits()) == pytest.approx(0.5)
    assert seconds(view(running=2, output=0.1), TokenHits()) == pytest.approx(1.2)


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.inf, math.nan])
def test_what_cannot_be_a_measurement_is_none(nonsense: float) -> None:
    assert seconds(view(prefill=nonsense, output=nonsense, running=1), TokenHits()) == pytest.approx(1.01)


def test_a_worker_that_was_not_measured_is_like_the_mean_of_the_others() -> None:
    fleet = fleet_speeds([view(prefill=100.0), view(prefill=300.0, output=0.5), view()], CostWeights())
    assert fleet == Speeds(200.0, 0.5)


def test_before_anything_was_measured_all_have_the_priors() -> None:
    weights = CostWeights(prior_prefill_tokens_per_second=7.0, prior_seconds_per_output=8.0)
    assert fleet_speeds([view(), view()], weights) == Speeds(7.0, 8.0)


def test_work_in_a_full_cache_costs_more_and_takes_no_longer() -> None:
    weights = CostWeights(displacement_weight=2.0)
    empty = request_cost(view(), TokenHits(), 1000, CacheLoad(), FLEET, weights)
    full = request_cost(view(), TokenHits(), 1000, CacheLoad(1.0), FLEET, weights)
    assert empty.seconds == empty.ttft_seconds == full.ttft_seconds
    assert full.seconds == pytest.approx(3 * full.ttft_seconds)


def test_a_cache_that_is_a_prompt_ahead_of_the_emptiest_is_not_the_place_for_another() -> None:
    weights = CostWeights(displacement_weight=0.0, imbalance_weight=2.0)
    costs = [
        request_cost(view(), TokenHits(), 1000, CacheLoad(num_tokens_ahead=ahead), FLEET, weights)
        for ahead in (0, 500, 1000, 9000)
    ]
    took = costs[0].ttft_seconds
    assert [cost.seconds for cost in costs] == pytest.approx([took, 2 * took, 3 * took, 3 * took])
    assert {cost.ttft_seconds for cost in costs} == {took}
    everything = TokenHits(num_device=1000)
    assert request_cost(view(), everything, 1000, CacheLoad(1.0, 9000), FLEET, weights).seconds == 0


def test_answers_that_prompts_slow_down_teach_little() -> None:
    speeds = MeasuredSpeeds()
    speeds.outputs(num_outputs=10, seconds=0.5)
    assert speeds.seconds_per_output == pytest.approx(0.05)
    speeds.outputs(num_outputs=10, seconds=5.0)
    assert speeds.seconds_per_output == pytest.approx(0.05 + 0.02 * 0.45)
    speeds.outputs(num_outputs=10, seconds=0.5)
    assert speeds.seconds_per_output == pytest.approx(0.059 + 0.2 * (0.05 - 0.059))
