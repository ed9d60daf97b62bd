"""Who gets how much of a step."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.scheduling_driver import Driver, planned, prompt

from pagefall.config import SchedulerConfig
from pagefall.scheduling.plan import MIN_PREFILL_TOKENS


def fcfs(**options: int) -> SchedulerConfig:
    return SchedulerConfig(schedule_policy="fcfs", **options)


def test_a_prompt_within_the_budget_is_computed_in_one_step_and_samples() -> None:
    driver = Driver()
    driver.submit("a", [1, 2, 3, 4, 5])
    plan = driver.step()
    (sequence,) = plan.sequences
    assert (sequence.start, sequence.token_ids.tolist(), sequence.num_prompt_tokens) == (0, [1, 2, 3, 4, 5], 5)
    assert len(sequence.page_ids) == 2
    assert sequence.sampling is not None


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert Driver().step().sequences == ()


def test_a_long_prompt_comes_in_chunks_and_only_the_last_one_samples() -> None:
    driver = Driver(scheduler=fcfs(chunked_prefill_size=32))
    driver.submit("a", prompt(0, 80))
    steps = [driver.step() for _ in range(4)]
    assert [planned(step)["a"] for step in steps] == [(0, 32), (32, 64), (64, 80), (80, 81)]
    assert [step.sequences[0].sampling is not None for step in steps] == [False, False, True, True]


def test_running_answers_get_their_token_while_a_long_prompt_is_computed() -> None:
    driver = Driver(num_pages=256, scheduler=fcfs(chunked_prefill_size=128))
    for name in ("a", "b"):
        driver.submit(name, prompt(ord(name), 8), max_tokens=20)
    driver.step()
    driver.submit("long", prompt(0, 300))
    steps = [planned(driver.step()) for _ in range(3)]
    assert [sorted(step) for step in steps] == [["a", "b", "long"]] * 3
    # 126 tokens are left beside two answers; a chunk ends at a multiple of 16.
    assert [step["long"] for step in steps] == [(0, 112), (112, 224), (224, 300)]


def test_many_running_answers_leave_prompts_their_minimum() -> None:
    driver = Driver(num_pages=2000, scheduler=fcfs(chunked_prefill_size=80, max_running_requests=100))
    for index in range(90):
        driver.submit(str(index), prompt(index, 1), max_tokens=50)
    while len(driver.running()) < 90:
        driver.step()
    driver.submit("long", prompt(1000, 200))
    step = planned(driver.step())
    assert len(step) == 91
    assert step["long"] == (0, MIN_PREFILL_TOKENS)


def test_the_minimum_is_never_more_than_the_chunk_size() -> None:
    driver = Driver(num_pages=400, scheduler=fcfs(chunked_prefill_size=16))
    for index in range(16):
        driver.submit(str(index), prompt(index, 1), max_tokens=50)
    driver.step()
    driver.submit("long", prompt(1000, 200))
    assert planned(driver.step())["long"] == (0, 16)


def test_prompts_share_the_budget_in_order_of_seniority() -> None:
    driver = Driver(scheduler=fcfs(chunked_prefill_size=64))
    driver.submit("a", prompt(0, 40))
    driver.submit("b", prompt(1, 40))
    driver.submit("c", prompt(2, 40))
    assert planned(driver.step()) == {"a": (0, 40)}
    assert planned(driver.step()) == {"a": (40, 41), "b": (0, 40)}
    assert planned(driver.step()) == {"a": (41, 42), "b": (40, 41), "c": (0, 40)}


def test_small_prompts_fill_a_step_together_and_one_that_does_not_fit_waits() -> None:
    driver = Driver(scheduler=fcfs(chunked_prefill_size=64))
    for name, num_tokens in {"a": 20, "b": 20, "c": 30, "d": 10}.items():
        driver.submit(name, prompt(ord(name), num_tokens))
    assert planned(driver.step()) == {"a": (0, 20), "b": (0, 20)}
    assert planned(driver.step()) == {"a": (20, 21), "b": (20, 21), "c": (0, 30), "d": (0, 10)}


def test_a_long_prompt_is_begun_in_a_step_that_is_less_than_half_full() -> None:
    driver = Driver(scheduler=fcfs(chunked_prefill_size=64))
    driver.submit("a", prompt(0, 20))
    driver.submit("b", prompt(1, 100))
    assert planned(driver.step()) == {"a": (0, 20), "b": (0, 32)}


def test_no_more_requests_run_than_allowed() -> None:
    driver = Driver(scheduler=fcfs(max_running_requests=2))
    for name in "abc":
        driver.submit(name, prompt(ord(name), 4), max_tokens=2)
    assert list(planned(driver.step())) == ["a", "b"]
    driver.step()
    assert list(planned(driver.step())) == ["c"]


def test_a_cached_head_is_not_computed_again() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 17), max_tokens=1)
    driver.run()
    driver.submit("b", [*prompt(0, 17), 5, 6, 7], max_tokens=1)
    assert planned(driver.step()) == {"b": (16, 20)}
    assert driver.cached_tokens == {"a": 0, "b": 16}


def test_the_runner_hears_once_which_requests_ended() -> None:
    driver = Driver()
    driver.submit("a", [1], max_tokens=1)
    driver.submit("b", [2], max_tokens=3)
    driver.step()
    assert driver.step().ended == ("a",)
    assert driver.step().ended == ()


@pytest.mark.parametrize("num_queued", [100, 10_000])
def test_a_step_looks_at_a_bounded_part_of_the_queue(num_queued: int) -> None:
    config = SchedulerConfig(max_running_requests=4, max_queued_requests=20_000, schedule_policy="lpm")
    driver = Driver(num_pages=4096, scheduler=config)
    for index in range(num_queued):
        driver.submit(str(index), prompt(index, 40), max_tokens=30)
    matches = 0
    cache_match = driver.state.cache.match

    def counting(root: bytes, token_ids: np.ndarray) -> object:
        nonlocal matches
        matches += 1
        return cache_match(root, token_ids)

    driver.state.cache.match = counting  # type: ignore[method-assign,assignment]
    start = time.process_time()
    for _ in range(20):
        driver.step()
    assert time.process_time() - start < 1.0
    assert matches <= 2 * 40
