"""The model runner: the model, and the one thread that may touch it and its device."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

from pagefall.messages import StepPlan, StepResult


class Model(Protocol):
    def step(self, plan: StepPlan) -> StepResult:
        """Computes the plan; blocks until it is done. Always called from the same thread."""


class ModelRunner:
    """Runs one step at a time. Used as a context manager; leaving it waits for the step under way."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model-runner")
        self._under_way: asyncio.Future[StepResult] | None = None

    def __enter__(self) -> ModelRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def step(self, plan: StepPlan) -> StepResult:
        """The plan's result; the loop goes on meanwhile. Raises what the model raises.

        Cancelled, the forward still runs to its end: pages must stay as they are until the runner is left. Raises
        `RuntimeError` while another step is under way.
        """
        if self._under_way is not None and not self._under_way.done():
            raise RuntimeError(f"step {plan.step} was sent while another one is under way")
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(self._thread, self._model.step, plan)
        return await self._under_way
