"""A server as a process of its own: what it logs, and what `pagefall explain` makes of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest

from pagefall.cli.main import main
from pagefall.insight.request_log import EndedLine, LogLine, RefusedLine

ROOT = Path(__file__).parents[2]


def test_a_server_logs_each_request_to_its_end_and_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.jsonl"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.fake_server", str(port), "30", f"request-log={path}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=os.environ) as process:
        try:
            wait_until_ready(process, url)
            ids = [ask(url, f"It is 12:4{minute}. You are kind to everybody.") for minute in (5, 7)]
            too_long = httpx.post(f"{url}/v1/completions", json={"model": "fake", "prompt": "x" * 2000})
            assert too_long.status_code == 400
            assert main(["explain", "trace-7", "--url", url]) == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    explained = capsys.readouterr().out
    assert f"{ids[1]}  fake  ended (length)" in explained
    assert "in messages[0] (system), character 10" in explained
    assert f"The path is that of {ids[0]}." in explained
    first, second, refused = [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]
    assert isinstance(first, EndedLine)
    assert isinstance(second, EndedLine)
    assert [line.request_id for line in (first, second)] == ids
    assert (second.http_request_id, second.finish_reason, second.num_generated_tokens) == ("trace-7", "length", 3)
    assert second.messages is not None
    assert second.messages[0].content == "It is 12:47. You are kind to everybody."
    assert second.num_cached_tokens == 16
    assert second.num_missed_tokens["diverged"] > 0
    assert second.divergence is not None
    assert (second.divergence.token_index, second.divergence.other_request_id) == (18, ids[0])
    assert isinstance(refused, RefusedLine)
    assert refused.reason == "too_long"


def wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(2400):
        assert process.poll() is None, "the server ended before it was ready"
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the server was not ready in time")


def ask(url: str, system: str) -> str:
    """The id of the answer, whose header says what the prompt's account is."""
    response = httpx.post(
        f"{url}/v1/chat/completions",
        headers={"x-request-id": f"trace-{system[10]}", "x-pagefall-explain": "1"},
        json={
            "model": "fake",
            "max_tokens": 3,
            "ignore_eos": True,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}],
        },
    )
    assert response.is_success
    wanted = "miss=never_seen@0" if system[10] == "5" else "miss=diverged@16"
    assert response.headers["x-pagefall-cache"].endswith(wanted)
    return str(response.json()["id"])
