"""Real servers whose store is down when they start, or is changed while they serve."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import pytest
from tests.faults.rig import prompt_of
from tests.faults.test_processes import NUM_PAGES, complete, tokens_by_tier
from tests.real_server import RealServer, real_server
from tests.redis_servers import RedisServer, free_port

pytestmark = pytest.mark.timeout(180)

PROMPT: Final = prompt_of(6, 400)
PATIENT: Final = ("--hicache-storage-prefetch-policy", "wait_complete")  # a tiny model computes faster than it fetches
ALL_FROM_STORAGE: Final = {"device": 0, "host": 0, "storage": NUM_PAGES * 16}
_WRITTEN: Final = re.compile(r'^pagefall_transfer_pages_total\{direction="host_to_storage"\} (.*)$', re.MULTILINE)


@pytest.fixture
def flags(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """Of a server with a host tier."""
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    return (
        *("--model-path", str(checkpoint), "--dtype", "float32", "--compile", "off", "--max-total-tokens", "8192"),
        "--enable-hierarchical-cache",
    )


def until_written(server: RealServer) -> None:
    """The prompt's pages are in the store."""
    deadline = time.monotonic() + 30
    while True:
        match = _WRITTEN.search(httpx.get(f"{server.url}/metrics").text)
        if match is not None and float(match[1]) >= NUM_PAGES:
            return
        assert time.monotonic() < deadline, server.log
        time.sleep(0.05)


def forget_all_but_the_store(server: RealServer) -> None:
    httpx.post(f"{server.url}/flush_cache?tiers=device,host", timeout=60).raise_for_status()


def test_a_store_is_attached_shown_and_detached_over_http(flags: Sequence[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "store")
    settings = {"path": folder, "min_free_bytes": 0}
    with real_server(tmp_path, *flags, *PATIENT, "--admin-api-key", "sk-admin") as server:
        url, headers = f"{server.url}/cache/storage", {"authorization": "Bearer sk-admin"}
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers=headers).json()["attached"] is False
        cold = complete(server.url, PROMPT)
        attached = httpx.put(url, headers=headers, json={"backend": "file", "extra_config": settings}, timeout=60)
        assert attached.status_code == 200
        assert (attached.json()["backend"], attached.json()["breaker"]) == ("file", "closed")
        assert folder in str(attached.json()["description"])
        until_written(server)
        forget_all_but_the_store(server)
        refused = httpx.put(url, headers=headers, json={"backend": "file", "extra_config": {"pth": "x"}}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "extra_config")
        hit = complete(server.url, PROMPT)
        assert hit["choices"] == cold["choices"]
        assert tokens_by_tier(hit) == ALL_FROM_STORAGE
        assert httpx.delete(url, headers=headers, timeout=60).json()["attached"] is False
        forget_all_but_the_store(server)
        assert tokens_by_tier(complete(server.url, PROMPT))["storage"] == 0
    from_the_start = ("--hicache-storage-backend", "file", *PATIENT)
    extra = ("--hicache-storage-backend-extra-config", json.dumps(settings), "--hicache-storage-required")
    with real_server(tmp_path, *flags, *from_the_start, *extra) as server:
        hit = complete(server.url, PROMPT)
        assert hit["choices"] == cold["choices"]
        assert tokens_by_tier(hit) == ALL_FROM_STORAGE


def test_a_server_starts_without_its_redis_and_uses_it_once_it_is_there(flags: Sequence[str], tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    store = ("--hicache-storage-backend", "redis", *PATIENT)
    extra = ("--hicache-storage-backend-extra-config", json.dumps({"url": redis.url}))
    try:
        with real_server(tmp_path, *flags, *store, *extra) as server:
            lines = [line for line in server.log.splitlines() if "starting without the store" in line]
            assert len(lines) == 1
            assert " WARNING " in lines[0]
            cold = complete(server.url, PROMPT)
            redis.start()
            deadline = time.monotonic() + 60
            while True:  # what is used again is written again, once the breaker lets it
                forget_all_but_the_store(server)
                hit = complete(server.url, PROMPT)
                assert hit["choices"] == cold["choices"]
                if tokens_by_tier(hit) == ALL_FROM_STORAGE:
                    break
                assert time.monotonic() < deadline, server.log
                time.sleep(0.2)
            assert list(redis.admin.scan_iter("*/namespace")), "the manifest came later too"
    finally:
        redis.kill()


def test_a_server_that_requires_its_store_ends_with_status_2_and_one_line(flags: Sequence[str]) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    command = [
        *(sys.executable, "-m", "pagefall", "serve", "--port", "0", *flags, "--hicache-storage-backend", "redis"),
        *("--hicache-storage-backend-extra-config", json.dumps({"url": url}), "--hicache-storage-required"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    errors = [line for line in ended.stderr.splitlines() if line.startswith("pagefall: error: ")]
    assert len(errors) == 1
    assert errors[0] == ended.stderr.splitlines()[-1]
    assert "--hicache-storage-required: the store does not answer: " in errors[0]
