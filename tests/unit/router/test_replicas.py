"""Workers that the router starts itself. They are small programs here, not models."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from pagefall.router import replicas
from pagefall.router.config import WorkersConfig
from pagefall.router.replicas import ReplicaError, Replicas
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import Worker, WorkerRegistry

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"


def make(program: str, *, count: int = 2) -> tuple[WorkerRegistry, Replicas]:
    registry = WorkerRegistry(WorkersConfig(), clock=time.monotonic)

    def command(number: int, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        return [sys.executable, "-c", program], {**os.environ, "NUMBER": str(number), "PORT": str(port)}

    return registry, Replicas(registry, command, count=count, grace_seconds=0.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_all_are_started_and_registered_and_end_with_the_router() -> None:
    registry, workers = make(SLEEPS)
    async with workers.running():
        await until(lambda: len(workers.pids()) == 2)
        pids = list(workers.pids().values())
        assert [worker.name for worker in registry.workers] == ["w0", "w1"]
        assert len({worker.worker_id for worker in registry.workers}) == 2
    assert not any(map(is_alive, pids))
    assert registry.workers == ()


async def test_one_that_dies_comes_back_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PAUSE_SECONDS", 0.01)
    registry, workers = make(SLEEPS)
    async with workers.running():
        await until(lambda: len(workers.pids()) == 2)
        first = workers.pids()[0]
        os.kill(first, signal.SIGKILL)
        await until(lambda: workers.pids().get(0) not in (None, first))
        assert workers.num_restarts == 1
        assert sorted(worker.name for worker in registry.workers) == ["w0", "w1"]


async def test_one_that_dies_leaves_its_requests_and_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PAUSE_SECONDS", 0.01)
    registry, workers = make(SLEEPS)
    async with workers.running():
        await until(lambda: len(workers.pids()) == 2)
        old = registry.get("w0")
        assert old is not None
        lease = registry.lease(old, num_prefill_tokens=0)
        lease.first_byte()  # and its client has stopped reading
        os.kill(workers.pids()[0], signal.SIGKILL)
        await until(lambda: registry.get("w0") not in (None, old))
        assert lease.abandoned == "removed"


async def test_one_that_an_operator_removed_comes_back_when_it_has_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PAUSE_SECONDS", 0.01)
    registry, workers = make(SLEEPS)
    async with workers.running():
        await until(lambda: len(workers.pids()) == 2)
        old = registry.get("w0")
        assert old is not None
        registry.remove(old)
        os.kill(workers.pids()[0], signal.SIGKILL)
        await until(lambda: registry.get("w0") is not None)
        assert registry.get("w0") is not old


async def test_one_whose_name_was_given_away_comes_back_under_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_FIRST_PAUSE_SECONDS", 0.01)
    registry, workers = make(SLEEPS)

    class Operator:
        def added(self, worker: Worker) -> None: ...

        def ready(self, worker: Worker) -> None: ...

        def lost(self, worker: Worker) -> None: ...

        def removed(self, worker: Worker) -> None:
            if registry.get("w0") is None:
                registry.add(worker_spec("http://elsewhere:1", "w0"), "api")

    async with workers.running():
        await until(lambda: len(workers.pids()) == 2)
        registry.listen(Operator())
        first = workers.pids()[0]
        os.kill(first, signal.SIGKILL)
        await until(lambda: workers.pids().get(0) not in (None, first))
        names = {worker.name for worker in registry.workers}
        assert {"w0", "w1"} < names
        assert [name for name in names if name.startswith("w0-")]


async def test_flags_that_no_worker_can_be_started_with_end_all() -> None:
    _, workers = make("import sys; sys.exit(2)")
    with pytest.raises(ExceptionGroup) as failures:
        async with workers.running():
            await asyncio.sleep(60)
    assert failures.group_contains(ReplicaError, match="cannot be started")
    assert workers.pids() == {}


async def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_KILL_SECONDS", 0.1)
    _, workers = make(STUBBORN, count=1)
    async with workers.running():
        await until(lambda: len(workers.pids()) == 1)
        [pid] = workers.pids().values()
    assert not is_alive(pid)


async def test_what_they_print_is_passed_on_with_their_names(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = "print('hello from', os.environ['NUMBER']); print('x' * 200_000); print('end', flush=True)"
    _, workers = make(f"import os, time; {lines}; time.sleep(600)", count=1)
    seen = ""

    def has_ended() -> bool:
        nonlocal seen
        seen += capfd.readouterr().err
        return "[w0] end\n" in seen

    async with workers.running():
        await until(has_ended)
    assert "[w0] hello from 0\n" in seen
