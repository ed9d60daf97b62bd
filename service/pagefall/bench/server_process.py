"""`pagefall serve`, or a router, as a process of the benchmark's own, on a free port of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

import anyio
import httpx
from anyio.abc import Process

from pagefall.errors import PagefallError

_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 60.0
_HOST: Final = "127.0.0.1"

Config = TypeVar("Config")
Result = TypeVar("Result")


def run_until_ended(function: Callable[[Config], Awaitable[Result]], config: Config) -> Result:
    """What `function(config)` returns, run on a loop of its own. SIGTERM ends it as Ctrl-C does, with everything that
    was started: it raises `KeyboardInterrupt` when that is done.
    """

    async def run() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await function(config)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@asynccontextmanager
async def served(
    flags: Sequence[str], environ: Mapping[str, str], *, subcommand: Literal["serve", "router"] = "serve"
) -> AsyncIterator[str]:
    """The URL of a server that is ready, started with `flags` and a port of its own. Leaving ends it.

    `environ` is added to the environment of this process. The server asks for no key.

    Raises `PagefallError` with the last line of its log when it does not start, or ends with another status than 0.
    """
    with tempfile.TemporaryDirectory(prefix="pagefall-bench-") as folder:
        log = Path(folder) / "server.log"
        port = _free_port()
        command = [sys.executable, "-m", "pagefall", subcommand, *flags, "--host", _HOST, "--port", str(port)]
        with log.open("wb") as stderr:
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, "PAGEFALL_API_KEY": "", **environ},
            )
        url = f"http://{_HOST}:{port}"
        try:
            await _wait_until_ready(url, process, log)
            yield url
        finally:
            status = await _stop(process)
        if status != 0:
            raise PagefallError(f"the server ended with status {status}: {_last_line(log)}")


async def _wait_until_ready(url: str, process: Process, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    async with httpx.AsyncClient(base_url=url) as http:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise PagefallError(f"the server did not start: {_last_line(log)}")
            try:
                if (await http.get("/health")).is_success:
                    return
            except httpx.TransportError:
                pass  # the port opens when the model is loaded
            await anyio.sleep(0.1)
    raise PagefallError(f"the server was not ready after {_START_SECONDS:.0f} s: {_last_line(log)}")


async def _stop(process: Process) -> int:
    """Its exit status. Nothing that happens to the benchmark leaves the process behind."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_STOP_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert process.returncode is not None
    return process.returncode


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().split("\n")
    return lines[-1].removeprefix("pagefall: error: ") or "it said nothing"
