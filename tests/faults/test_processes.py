"""Real servers and their ends: killed under load, or over a store that never answers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.integration.test_serve_process import ROOT
from tests.real_server import RealServer, real_server

pytestmark = pytest.mark.timeout(180)

STORY: Final = "Once upon a time there was a server that never forgot what it had read. " * 12


def complete(url: str, prompt: str, *, max_tokens: int = 8) -> Any:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    return response.json()


def tokens_by_tier(answer: Any) -> dict[str, int]:
    details: dict[str, dict[str, int]] = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens_by_tier"]


def stored_pages(folder: Path) -> int:
    return sum(len(path.name) == 64 for path in folder.rglob("*"))


def test_a_server_killed_under_load_and_started_again_answers_from_its_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    flags = [
        *("--dtype", "float32", "--context-length", "2048", "--max-total-tokens", "4096", "--compile", "off"),
        *("--enable-hierarchical-cache", "--hicache-storage-backend", "file"),
        *("--hicache-storage-prefetch-policy", "wait_complete"),
        *("--hicache-storage-backend-extra-config", json.dumps({"path": str(store)})),
    ]
    server = RealServer(tmp_path / "killed.log", *flags)
    try:
        cold = complete(server.url, STORY)
        num_pages = (cold["usage"]["prompt_tokens"] - 1) // 16
        deadline = time.monotonic() + 20
        while stored_pages(store) < num_pages and time.monotonic() < deadline:
            time.sleep(0.02)

        def load() -> None:
            with suppress(httpx.HTTPError):
                complete(server.url, STORY[::-1], max_tokens=500)

        loading = threading.Thread(target=load)
        loading.start()
        time.sleep(1.0)
        assert loading.is_alive()
    finally:
        server.process.kill()
        assert server.wait() == -signal.SIGKILL
    loading.join()
    with real_server(tmp_path, *flags) as again:
        hit = complete(again.url, STORY)
        assert hit["choices"] == cold["choices"]
        assert tokens_by_tier(hit) == {"device": 0, "host": 0, "storage": num_pages * 16}
        assert [path.name for path in (store / ".temp").rglob("*") if path.is_file()] == ["lock"]


def test_a_server_ends_in_time_though_its_store_never_does() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.faults.silent_server", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        try:
            while server.poll() is None:
                with suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").is_success:
                        break
                time.sleep(0.05)
            for _ in range(2):
                assert complete(url, STORY[:400])["usage"]["completion_tokens"] == 8
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=40)
        finally:
            server.kill()
    assert server.returncode == 0, log
    assert "does not end, most likely a call of the store: the process ends without it" in log
