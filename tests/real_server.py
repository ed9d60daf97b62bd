"""`pagefall serve` with the embedded model, as a process of its own on a free port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx


class RealServer:
    """Ready to serve from its construction on. `log_path`: where its standard error goes. `python` runs it. `port`: one
    that is free; None finds one.
    """

    def __init__(self, log_path: Path, *flags: str, python: str = sys.executable, port: int | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.host, self.port = probe.getsockname()
        self.port = self.port if port is None else port
        self.url = f"http://{self.host}:{self.port}"
        self._log_path = log_path
        command = [python, "-m", "pagefall", "serve", "--host", self.host, "--port", str(self.port), *flags]
        # Nobody listens on port 1: whoever asks the model hub for anything is heard in the log.
        environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"}
        with log_path.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            self._wait_until_ready()
        except BaseException:
            self.process.kill()
            raise

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(timeout=60)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended while it started: {self.log}"
            try:
                if httpx.get(f"{self.url}/health").is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"the server did not become ready: {self.log}")


@contextmanager
def real_server(folder: Path, *flags: str, python: str = sys.executable) -> Iterator[RealServer]:
    """Its log is in `folder`. Leaving it ends the server, with status 0."""
    server = RealServer(folder / "server.log", *flags, python=python)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.interrupt()
        status = server.wait()
    assert status == 0, server.log
