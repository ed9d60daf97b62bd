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
        self._running: dict[WorkerId, tuple[Subscriber, anyio.CancelScope]] = {}

    @property
    def states(self) -> list[SubscriptionState]:
        return [subscriber.state for subscriber, _ in self._running.values()]

    def state_of(self, worker_id: WorkerId) -> SubscriptionState | None:
        """None of a worker whose events nobody reads."""
        running = self._running.get(worker_id)
        return None if running is None else running[0].state

    def added(self, worker: Worker) -> None:
        if self._group is None or self._client is None:
            return
        subscriber = Subscriber(worker.worker_id, self._index, self._client, api_key=self._api_key, models=self._models)
        scope = anyio.CancelScope()
        self._running[worker.worker_id] = subscriber, scope
        self._group.start_soon(_run, subscriber, scope)

    def ready(self, worker: Worker) -> None:
        if worker.worker_id in self._running:
            self._running[worker.worker_id][0].wake()

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None:
        running = self._running.pop(worker.worker_id, None)
        if running is not None:
            running[1].cancel()

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


async def _run(subscriber: Subscriber, scope: anyio.CancelScope) -> None:
    with scope:
        await subscriber.run()
