"""How long the scheduler takes to decide a step and to apply its result, by the number of running requests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from statistics import median

import msgspec
import numpy as np

from pagefall.bench.cache_timing import random_prompt
from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.messages import (
    Accepted,
    RequestId,
    SamplingParams,
    StepPlan,
    StepResult,
    StopParams,
    Submit,
    TokenLogprob,
)
from pagefall.scheduling.apply import apply_result
from pagefall.scheduling.intake import submit
from pagefall.scheduling.plan import plan_step
from pagefall.scheduling.state import SchedulerState

NUM_QUEUED = 10_000
_DECODE_PROMPT_TOKENS = 1_024
_CHURN_PROMPT_TOKENS = 256
_ARRIVALS_PER_STEP = 2
_SAMPLED = TokenLogprob(token_id=7, logprob=0.0)


class SchedulerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Medians in microseconds of CPU time for planning a step and applying its result; the forward does not count.

    `decode_us`: every running request decodes. `queued_us`: the same while `NUM_QUEUED` others wait. `churn_us`: in
    each step about two requests end and as many from the queue start, with prompts of 256 tokens to prefill.
    """

    decode_us: float
    queued_us: float
    churn_us: float


def time_scheduler(*, page_size: int, num_running: int, num_steps: int) -> SchedulerTiming:
    """Times steps with `num_running` requests running, `num_steps` of each kind."""
    return SchedulerTiming(
        decode_us=_decode_us(page_size, num_running, num_steps, num_queued=0),
        queued_us=_decode_us(page_size, num_running, num_steps, num_queued=NUM_QUEUED),
        churn_us=_churn_us(page_size, num_running, num_steps),
    )


def _decode_us(page_size: int, num_running: int, num_steps: int, *, num_queued: int) -> float:
    max_tokens = 2 * (num_running + num_steps)  # enough that nobody ends before the last one has been prefilled
    state = _new_state(page_size, num_running, _DECODE_PROMPT_TOKENS + max_tokens)
    _submit(state, num_running, _DECODE_PROMPT_TOKENS, max_tokens)
    steps = _steps(state)
    while not all(len(sequence.token_ids) - sequence.start == 1 for sequence in next(steps)[0].sequences):
        pass
    _submit(state, num_queued, page_size, max_tokens)
    timed = [next(steps) for _ in range(num_steps)]
    assert all(len(plan.sequences) == num_running for plan, _ in timed)
    return median(us for _, us in timed)


def _churn_us(page_size: int, num_running: int, num_steps: int) -> float:
    max_tokens = max(1, num_running // _ARRIVALS_PER_STEP)
    num_warm_up_steps = 2 * max_tokens
    state = _new_state(page_size, num_running, _CHURN_PROMPT_TOKENS + max_tokens)
    num_requests = num_running + _ARRIVALS_PER_STEP * (num_warm_up_steps + num_steps)
    _submit(state, num_requests, _CHURN_PROMPT_TOKENS, max_tokens)
    steps = _steps(state)
    for _ in range(num_warm_up_steps):
        next(steps)
    return median(us for _, us in (next(steps) for _ in range(num_steps)))


def _new_state(page_size: int, num_running: int, num_request_tokens: int) -> SchedulerState:
    """A scheduler with room for all: twice the pages that so many requests of that length need."""
    return SchedulerState(
        scheduler=SchedulerConfig(
            max_running_requests=num_running,
            max_queued_requests=10 * NUM_QUEUED,
            chunked_prefill_size=num_running + _ARRIVALS_PER_STEP * _CHURN_PROMPT_TOKENS,
        ),
        cache=CacheConfig(page_size=page_size),
        page_size=page_size,
        num_pages=2 * num_running * (num_request_tokens // page_size + 1),
        namespace=b"bench",
    )


def _submit(state: SchedulerState, num_requests: int, num_prompt_tokens: int, max_tokens: int) -> None:
    rng = np.random.default_rng(state.num_arrivals)
    for index in range(num_requests):
        message = Submit(
            request_id=RequestId(f"{state.num_arrivals}-{index}"),
            token_ids=random_prompt(rng, num_prompt_tokens),
            sampling=SamplingParams(temperature=0.0),
            stop=StopParams(max_tokens=max_tokens),
        )
        assert isinstance(submit(state, message, now=time.monotonic()), Accepted)


def _steps(state: SchedulerState) -> Iterator[tuple[StepPlan, float]]:
    """Runs step after step and yields each plan with the microseconds that planning and applying it took."""
    for step in itertools.count():
        now = time.monotonic()
        started = time.thread_time()
        plan = plan_step(state, step=step, now=now)
        planned = time.thread_time()
        result = _run(plan)
        computed = time.thread_time()
        apply_result(state, plan, result, now=now)
        yield plan, (planned - started + time.thread_time() - computed) * 1e6


def _run(plan: StepPlan) -> StepResult:
    """A model that always says the same."""
    sampled = tuple(None if sequence.sampling is None else _SAMPLED for sequence in plan.sequences)
    return StepResult(step=plan.step, sampled=sampled, forward_seconds=0.0, sample_seconds=0.0)
