"""Workers of one machine under the router's own process: started, watched, and started again when they die.

A worker that dies is out of the registry at once, so its requests go elsewhere or end with a clear error, and it comes
back under another port. One that cannot even start for a fault of its configuration ends all.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from pagefall.errors import PagefallError
from pagefall.router.backoff import Backoff
from pagefall.router.worker_urls import worker_spec
from pagefall.router.workers import Worker, WorkerRegistry

_log = logging.getLogger("pagefall.replicas")

_CONFIG_FAULT: Final = 2
"""The exit status of `pagefall serve` for flags that cannot be served."""

_STEADY_SECONDS: Final = 60.0
"""A worker that lived so long starts again without a pause."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0

_KILL_SECONDS: Final = 15.0
"""How much longer than the grace a worker may take to end."""

_PR_SET_PDEATHSIG: Final = 1


class ReplicaError(PagefallError):
    """A worker ended before it ever served, in a way that trying again would not change."""


Command = Callable[[int, int], tuple[Sequence[str], Mapping[str, str]]]
"""Worker number and port to its command line and its environment."""


class Replicas:
    """`running` starts them all and ends them all."""

    def __init__(
        self,
        registry: WorkerRegistry,
        command: Command,
        *,
        count: int,
        grace_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._command = command
        self._count = count
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self.num_restarts = 0

    def pids(self) -> dict[int, int]:
        """Process ids by worker number, of those that live."""
        return {number: process.pid for number, process in self._processes.items() if process.returncode is None}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises `ReplicaError` (in an `ExceptionGroup`) when a worker cannot be started at all."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep(number), name=f"w{number}") for number in range(self._count)]
            try:
                yield
            finally:
                for task in tasks:
                    if not task.cancelling():  # once is enough: the second would cut short how it ends its worker
                        task.cancel()

    async def _keep(self, number: int) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, random.Random())
        has_served = False
        while True:
            port = _free_port()
            worker = self._join(number, port)
            began_at = self._clock()
            try:
                status = await self._run(number, port)
                _log.error("worker w%d ended with status %d", number, status)
            finally:
                has_served = has_served or worker.has_been_healthy
                # Its process is gone: what is under way breaks off, or goes elsewhere, and its name is free again.
                self._registry.remove(worker, at_once=True)
            if status == _CONFIG_FAULT and not has_served:
                raise ReplicaError(f"worker w{number} cannot be started with these flags; its last words are above")
            self.num_restarts += 1
            _log.info("worker w%d is started again", number)
            if self._clock() - began_at >= _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next_seconds())

    def _join(self, number: int, port: int) -> Worker:
        """Under another name where an operator has given its own to another worker meanwhile."""
        url = f"http://127.0.0.1:{port}"
        names = (name for name in (f"w{number}", f"w{number}-{port}") if self._registry.get(name) is None)
        return self._registry.add(worker_spec(url, next(names, None)), "flag")

    async def _run(self, number: int, port: int) -> int:
        """Its exit status. Cancelled, it is told to end, and killed if it does not."""
        command, environ = self._command(number, port)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this process, which passes on what it means
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self._processes[number] = process
        reading = asyncio.create_task(_pass_on(process, number))
        try:
            return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(self._grace_seconds + _KILL_SECONDS):
                    await process.wait()
            except TimeoutError:
                _log.error("worker w%d does not end, and is killed", number)
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            await reading


async def _pass_on(process: asyncio.subprocess.Process, number: int) -> None:
    """What the worker prints, each line with its name."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:  # longer than the reader's buffer, which was emptied
            continue
        if not line:
            return
        sys.stderr.write(f"[w{number}] {line.decode(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Runs in the child before it becomes another program: a supervisor that is killed leaves nobody behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
