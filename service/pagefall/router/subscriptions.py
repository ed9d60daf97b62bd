"""The workers' KV events: a subscriber for each worker while there is one."""

from __future__ import annotations

from collections.abc import Collection

import anyio
import anyio.abc
import httpx

from pagefall.router.index import PrefixIndex
from pagefall.router.routing import WorkerId
from pagefall.router.subscriber import Subscriber, SubscriptionState
from pagefall.router.workers import Worker, WorkerRegistry


class Subscriptions:
    """A `WorkerListener`. `run` is the task of them all."""

    def __init__(
        self,
        registry: WorkerRegistry,
        index: PrefixIndex,
        *,
        worker_api_key: str | None,
        models: Collection[str] | None = None,
    ) -> None:
        """`models` as an `EventFeed` takes it."""
        self._registry = registry
        self._index = index
        self._api_key = worker_api_key
        self._models = models
        self._client: httpx.AsyncClient | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._running: dict[WorkerId, _Running] = {}

    @property
    def states(self) -> list[SubscriptionState]:
        return [running.subscriber.state for running in self._running.values()]

    def state_of(self, worker_id: WorkerId) -> SubscriptionState | None:
        """None of a worker whose events nobody reads."""
        running = self._running.get(worker_id)
        return None if running is None else running.subscriber.state

    def added(self, worker: Worker) -> None:
        if self._group is None or self._client is None:
            return
        subscriber = Subscriber(
            worker.worker_id,
            self._index,
            self._client,
            api_key=self._api_key,
            name=worker.name,
            models=self._models,
        )
        running = self._running[worker.worker_id] = _Running(subscriber)
        self._group.start_soon(running.run)
        if worker.state == "healthy":
            running.begin()

    def ready(self, worker: Worker) -> None:
        if worker.worker_id in self._running:
            self._running[worker.worker_id].begin()

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None:
        running = self._running.pop(worker.worker_id, None)
        if running is not None:
            running.scope.cancel()

    async def run(self) -> None:
        """Until it is cancelled."""
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(limits=limits, trust_env=False) as self._client,
            anyio.create_task_group() as self._group,
        ):
            for worker in self._registry.workers:
                self.added(worker)
            await anyio.sleep_forever()


class _Running:
    """Reads from when the worker is healthy for the first time: before, it loads its model."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.scope = anyio.CancelScope()
        self._may_begin = anyio.Event()

    def begin(self) -> None:
        """Now, or again at once where it waits after a failure."""
        self._may_begin.set()
        self.subscriber.wake()

    async def run(self) -> None:
        with self.scope:
            await self._may_begin.wait()
            await self.subscriber.run()
