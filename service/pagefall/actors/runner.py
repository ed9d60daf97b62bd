"""The model runner: the model, and the one thread that may touch it and its device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeVar

from pagefall.messages import StepPlan, StepResult

T = TypeVar("T")


class Model(Protocol):
    def step(self, plan: StepPlan) -> StepResult:
        """Computes the plan; blocks until it is done. Always called from the same thread."""


class DeviceThread:
    """The one thread that computes anything. Used as a context manager; leaving it waits for the work under way.

    The model is loaded in it, too. Each thread that computes has a pool of OpenMP threads for ever; once there are more
    of them than cores, libgomp's threads sleep between two parallel regions instead of spinning, and a token that is
    hundreds of such regions takes twice as long (measured: 14 ms became 27 to 33).
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model-runner")

    def __enter__(self) -> DeviceThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def call(self, function: Callable[..., T], *args: Any, **keywords: Any) -> T:
        """The function's result; blocks until it is there. Raises what the function raises."""
        return self._executor.submit(function, *args, **keywords).result()

    def start(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """The same for the running loop, which goes on meanwhile."""
        return asyncio.get_running_loop().run_in_executor(self._executor, function, *args)


class ModelRunner:
    """Runs one step at a time on the device's thread."""

    def __init__(self, model: Model, thread: DeviceThread) -> None:
        self._model = model
        self._thread = thread
        self._under_way: asyncio.Future[StepResult] | None = None

    async def step(self, plan: StepPlan) -> StepResult:
        """The plan's result; the loop goes on meanwhile. Raises what the model raises.

        Cancelled, the forward still runs to its end: pages must stay as they are until the thread is left. Raises
        `RuntimeError` while another step is under way.
        """
        if self._under_way is not None and not self._under_way.done():
            raise RuntimeError(f"step {plan.step} was sent while another one is under way")
        self._under_way = self._thread.start(self._model.step, plan)
        return await self._under_way
