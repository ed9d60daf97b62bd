"""Real servers and their ends: killed under load, or over a store that never answers."""

from __future__ import annotations

import itertools
import json
import os
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
from tests.faults.rig import TokenList, prompt_of
from tests.integration.test_serve_process import ROOT
from tests.real_server import RealServer, real_server

pytestmark = pytest.mark.timeout(180)

PROMPT: Final = prompt_of(5, 400)
NUM_PAGES: Final = 24
TEXT: Final = "Once upon a time there was a server that remembered. " * 8


def complete(url: str, prompt: str | TokenList) -> Any:
    """A greedy answer of eight tokens."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    response.raise_for_status()
    return response.json()


def tokens_by_tier(answer: Any) -> dict[str, int]:
    details: dict[str, dict[str, int]] = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens_by_tier"]


def num_stored(folder: Path) -> int:
    """Pages in a file store, which a server may be using."""
    return sum(len(name) == 64 for _, folders, files in os.walk(folder) for name in (*folders, *files))


def test_a_server_killed_under_load_and_started_again_answers_from_its_store(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    store = tmp_path / "store"
    flags = [
        *("--model-path", str(checkpoint), "--dtype", "float32", "--compile", "off", "--max-total-tokens", "8192"),
        *("--enable-hierarchical-cache", "--hicache-storage-backend", "file"),
        *("--hicache-storage-prefetch-policy", "wait_complete"),
        *("--hicache-storage-backend-extra-config", json.dumps({"path": str(store)})),
    ]
    server = RealServer(tmp_path / "killed.log", *flags)
    answered = threading.Event()

    def load() -> None:
        with suppress(httpx.HTTPError):
            for seed in itertools.count(100):
                complete(server.url, prompt_of(seed, 1000))
                answered.set()

    loading = threading.Thread(target=load)
    try:
        cold = complete(server.url, PROMPT)
        deadline = time.monotonic() + 20
        while num_stored(store) < NUM_PAGES and time.monotonic() < deadline:
            time.sleep(0.02)
        loading.start()
        assert answered.wait(timeout=20)
    finally:
        server.process.kill()
        assert server.wait() == -signal.SIGKILL
    loading.join()
    with real_server(tmp_path, *flags) as again:
        hit = complete(again.url, PROMPT)
        assert hit["choices"] == cold["choices"]
        assert tokens_by_tier(hit) == {"device": 0, "host": 0, "storage": NUM_PAGES * 16}
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
                assert complete(url, TEXT)["usage"]["completion_tokens"] == 8
            server.send_signal(signal.SIGTERM)
            _, log = server.communicate(timeout=40)
        finally:
            server.kill()
    assert server.returncode == 0, log
    assert "does not end, most likely a call of the store: the process ends without it" in log
