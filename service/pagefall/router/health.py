"""Active health checks: every worker is probed in a task of its own, for as long as it is there."""

from __future__ import annotations

import logging
from typing import Final

import anyio
import anyio.abc
import msgspec

from pagefall.router.config import WorkersConfig
from pagefall.router.upstream import UpstreamError, Upstreams
from pagefall.router.workers import Worker, WorkerRegistry

_log = logging.getLogger("pagefall.router")

_FIRST_SECONDS: Final = 0.25
"""Between probes of a worker that joins, or whose last probe failed."""

_MODELS_PATH: Final = "/v1/models"
_MAX_BYTES: Final = 1 << 20


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class HealthChecks:
    """A `WorkerListener`. `run` is the task of them all."""

    def __init__(self, registry: WorkerRegistry, upstreams: Upstreams, config: WorkersConfig) -> None:
        self._registry = registry
        self._upstreams = upstreams
        self._config = config
        self._group: anyio.abc.TaskGroup | None = None

    def added(self, worker: Worker) -> None:
        if self._group is not None:
            self._group.start_soon(self._watch, worker)

    def ready(self, worker: Worker) -> None: ...

    def lost(self, worker: Worker) -> None: ...

    def removed(self, worker: Worker) -> None: ...

    async def run(self) -> None:
        """Until it is cancelled."""
        async with anyio.create_task_group() as self._group:
            for worker in self._registry.workers:
                self._group.start_soon(self._watch, worker)
            await anyio.sleep_forever()

    async def probe(self, worker: Worker) -> None:
        """One probe, and what it says of the worker."""
        trouble, is_silent = None, True
        try:
            with anyio.fail_after(self._config.health_timeout):
                status, _ = await self._get(worker, self._config.health_path)
        except TimeoutError:
            trouble = f"no answer to {self._config.health_path} in {self._config.health_timeout:g} seconds"
        except UpstreamError as error:
            trouble = f"no answer to {self._config.health_path}: {error}"
        else:
            if status >= 400:
                trouble, is_silent = f"{self._config.health_path} says {status}", False
        if worker.state == "removed":
            return
        if trouble is not None:
            self._registry.probe_failed(worker, trouble, is_silent=is_silent)
            return
        if worker.state in ("joining", "unhealthy"):
            worker.models = await self._models(worker)
        self._registry.probe_succeeded(worker)

    async def _watch(self, worker: Worker) -> None:
        while worker.state != "removed":
            worker.wanted = anyio.Event()
            await self.probe(worker)
            interval = self._config.health_interval
            if worker.state != "healthy" or worker.trouble is not None:
                interval = min(interval, _FIRST_SECONDS)
            with anyio.move_on_after(interval):
                await worker.wanted.wait()
        self._upstreams.close_retired()

    async def _models(self, worker: Worker) -> frozenset[str]:
        """What it serves; empty where it does not say."""
        try:
            with anyio.fail_after(self._config.health_timeout):
                status, body = await self._get(worker, _MODELS_PATH)
            models = msgspec.json.decode(body, type=_Models).data if status < 400 else []
            return frozenset(model.id for model in models)
        except (TimeoutError, UpstreamError, msgspec.MsgspecError):
            return frozenset()

    async def _get(self, worker: Worker, path: str) -> tuple[int, bytes]:
        """Raises `UpstreamError`."""
        headers = self._upstreams.authorized([(b"user-agent", b"pagefall-router")])
        response = await self._upstreams.send(worker.worker_id, "GET", path, headers, b"")
        try:
            return response.status, await response.read(_MAX_BYTES)
        finally:
            response.close()
