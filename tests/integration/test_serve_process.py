"""How a server ends, seen from outside: signals, crashes, statuses and last lines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagefall.api.server import bind
from pagefall.config import HttpConfig
from pagefall.errors import ConfigError

ROOT = Path(__file__).parents[2]


class Server:
    def __init__(self, *, grace_seconds: float, crash: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
            port = str(probe.getsockname()[1])
        command = [sys.executable, "-m", "tests.fake_server", port, str(grace_seconds), *(["crash"] if crash else [])]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "default"}
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended before it was ready"
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.ConnectError:
                time.sleep(0.05)
        raise AssertionError("the server was not ready in time")

    def wait_until_closed(self) -> None:
        """Until it accepts no more connections, which is how a shutdown begins."""
        with suppress(httpx.ConnectError):
            while True:
                httpx.get(f"{self.url}/health/live")
                time.sleep(0.01)

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Exit status and everything on standard error."""
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@contextmanager
def running_server(*, grace_seconds: float = 30.0, crash: bool = False) -> Iterator[Server]:
    server = Server(grace_seconds=grace_seconds, crash=crash)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


class Stream:
    """A streamed completion that a thread reads; `begun` is set at its first event."""

    def __init__(self, server: Server, *, max_tokens: int) -> None:
        self.begun = threading.Event()
        self.events: list[dict[str, Any]] = []
        self._url = f"{server.url}/v1/completions"
        self._body = {"model": "fake", "prompt": "hi", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self.begun.wait(timeout=30)

    def join(self) -> list[str | None]:
        """The finish reasons of all chunks."""
        self._thread.join(timeout=60)
        return [event["choices"][0]["finish_reason"] for event in self.events if "choices" in event]

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
                        self.begun.set()
        except httpx.HTTPError:
            pass  # the server may be gone: what was read stays


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains_and_ends_with_status_zero(number: int) -> None:
    with running_server() as server:
        stream = Stream(server, max_tokens=40)
        server.signal(number)
        assert stream.join()[-1] == "length"
        status, log = server.ended()
        assert status == 0
        assert "Traceback" not in log
        assert log.splitlines()[-1].endswith("stopped")


def test_requests_that_outlive_the_grace_period_end_with_an_error() -> None:
    with running_server(grace_seconds=0.2) as server:
        stream = Stream(server, max_tokens=900)
        server.signal()
        assert set(stream.join()) == {None}
        assert stream.events[-1]["error"]["code"] == "aborted"
        status, log = server.ended()
        assert status == 0
        assert "Traceback" not in log


def test_the_second_signal_ends_at_once() -> None:
    with running_server() as server:
        stream = Stream(server, max_tokens=900)
        server.signal()
        server.wait_until_closed()
        server.signal()
        status, _ = server.ended()
        assert status == 130
        assert "length" not in stream.join()


def test_a_crash_ends_with_a_status_and_a_last_line_that_says_why() -> None:
    with running_server(crash=True) as server:
        Stream(server, max_tokens=900).join()
        status, log = server.ended()
        assert status == 1
        assert log.splitlines()[-1] == "pagefall: error: Scheduler crashed: ArithmeticError: bad luck"


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use"):
            bind(HttpConfig(port=port))


def test_a_host_that_does_not_exist_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"--host no-such-host\.invalid"):
        bind(HttpConfig(host="no-such-host.invalid"))
