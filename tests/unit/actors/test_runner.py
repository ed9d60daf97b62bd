from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from pagefall.actors.runner import DeviceThread, ModelRunner
from pagefall.messages import StepPlan, StepResult

pytestmark = pytest.mark.anyio


class GatedModel:
    """Each step waits for its gate: a result, or an exception."""

    def __init__(self, *gates: Future[StepResult]) -> None:
        self.threads: list[str] = []
        self.num_done = 0
        self._gates = list(gates)

    def step(self, plan: StepPlan) -> StepResult:
        self.threads.append(threading.current_thread().name)
        result = self._gates.pop(0).result(timeout=10)
        self.num_done += 1
        return result


def plan(step: int) -> StepPlan:
    return StepPlan(step=step, sequences=())


def result(step: int) -> StepResult:
    return StepResult(step=step, sampled=(), forward_seconds=0.0, sample_seconds=0.0)


def opened(step: int) -> Future[StepResult]:
    gate: Future[StepResult] = Future()
    gate.set_result(result(step))
    return gate


@contextmanager
def running(model: GatedModel) -> Iterator[ModelRunner]:
    with DeviceThread() as thread:
        yield ModelRunner(model, thread)


async def test_the_loop_goes_on_while_a_step_is_computed() -> None:
    gate: Future[StepResult] = Future()
    with running(GatedModel(gate)) as runner:
        step = asyncio.create_task(runner.step(plan(1)))
        await asyncio.sleep(0.01)
        assert not step.done()
        gate.set_result(result(1))
        assert await step == result(1)


async def test_every_step_runs_on_the_same_thread_which_is_not_the_loops() -> None:
    model = GatedModel(*(opened(step) for step in range(3)))
    with running(model) as runner:
        for step in range(3):
            await runner.step(plan(step))
    assert len(set(model.threads)) == 1
    assert threading.current_thread().name not in model.threads


async def test_what_the_model_raises_comes_out() -> None:
    gate: Future[StepResult] = Future()
    gate.set_exception(ArithmeticError("out of numbers"))
    with running(GatedModel(gate)) as runner, pytest.raises(ArithmeticError, match="out of numbers"):
        await runner.step(plan(1))


async def test_a_second_step_is_refused_while_one_is_under_way() -> None:
    gate: Future[StepResult] = Future()
    with running(GatedModel(gate, opened(2))) as runner:
        first = asyncio.create_task(runner.step(plan(1)))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="step 2 was sent while another one is under way"):
            await runner.step(plan(2))
        gate.set_result(result(1))
        await first
        assert await runner.step(plan(2)) == result(2)


async def test_leaving_the_thread_waits_for_the_step_even_if_it_was_cancelled() -> None:
    gate: Future[StepResult] = Future()
    model = GatedModel(gate)
    with running(model) as runner:
        step = asyncio.create_task(runner.step(plan(1)))
        await asyncio.sleep(0.01)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        threading.Timer(0.02, gate.set_result, [result(1)]).start()
    assert model.num_done == 1
