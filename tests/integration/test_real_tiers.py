"""What users of the tiers type, on the real server: the host tier alone, then a file store below it, over a restart."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import httpx
import pytest
from tests.real_server import RealServer, real_server

HOST_TIER: Final = (
    *("--context-length", "8192", "--max-running-requests", "1"),
    *("--enable-hierarchical-cache", "--hicache-ratio", "2"),
    *("--hicache-io-backend", "kernel", "--hicache-mem-layout", "page_first"),
)
# Patience, for on a busy machine computing may look nearer than fetching, and would be chosen.
FILE_TIER: Final = (
    *HOST_TIER,
    *("--hicache-storage-backend", "file", "--hicache-storage-prefetch-policy", "wait_complete"),
)
PROMPT: Final = "".join(f"Line {number}: a prompt that is long enough to be worth keeping.\n" for number in range(40))
WRITTEN: Final = re.compile(r'^pagefall_transfer_pages_total\{direction="host_to_storage"\} (.*)$', re.MULTILINE)


class Answer:
    """The greedy answer to `PROMPT`, and how many of its tokens came from which tier."""

    def __init__(self, server: RealServer) -> None:
        body = {"model": "SmolLM2-135M-Instruct", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert response.is_success, response.text
        answer = response.json()
        details = answer["usage"]["prompt_tokens_details"]
        self.text: str = answer["choices"][0]["text"]
        self.num_cached: int = details["cached_tokens"]
        self.by_tier: dict[str, int] = {
            tier: count for tier, count in details["cached_tokens_by_tier"].items() if count
        }
        self.num_whole_pages = (answer["usage"]["prompt_tokens"] - 1) // 16 * 16


def flush(server: RealServer, tiers: str = "") -> dict[str, int]:
    response = httpx.post(f"{server.url}/flush_cache{tiers and f'?tiers={tiers}'}", timeout=60)
    assert response.is_success, response.text
    counts: dict[str, int] = response.json()["num_pages"]
    return counts


def until_written(server: RealServer, num_pages: int) -> None:
    """Pages are written in the background."""
    deadline = time.monotonic() + 30
    while (match := WRITTEN.search(httpx.get(f"{server.url}/metrics").text)) is None or float(match[1]) < num_pages:
        assert time.monotonic() < deadline, "the pages were not written"
        time.sleep(0.05)


def test_the_host_tier_gives_back_what_the_device_has_lost(tmp_path: Path) -> None:
    with real_server(tmp_path, *HOST_TIER) as server:
        cold = Answer(server)
        assert cold.num_cached == 0
        assert flush(server, "device")["device"] > 0
        warm = Answer(server)
        assert (warm.text, warm.by_tier) == (cold.text, {"host": cold.num_whole_pages})
        log = server.log
    assert "--hicache-io-backend" not in log
    assert "  host     16,384 tokens in 1,024 pages of 16: " in log


def test_the_file_tier_gives_back_what_the_host_has_lost_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nvme" / "hicache"
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(folder))
    with real_server(tmp_path, *FILE_TIER) as server:
        cold = Answer(server)
        assert cold.num_cached == 0
        flush(server, "device")
        assert Answer(server).by_tier == {"host": cold.num_whole_pages}
        until_written(server, cold.num_whole_pages // 16)
        assert set(flush(server)) == {"device", "host"}
        from_store = Answer(server)
        assert from_store.text == cold.text
        assert from_store.by_tier == {"storage": cold.num_whole_pages}
        assert str(folder) in server.log
    with real_server(tmp_path, *FILE_TIER) as server:
        restarted = Answer(server)
        assert restarted.text == cold.text
        assert restarted.by_tier == {"storage": cold.num_whole_pages}
        assert flush(server, "device,host,storage")["storage"] >= cold.num_whole_pages // 16
        assert Answer(server).num_cached == 0
    assert not [path for path in folder.rglob("*") if "tmp" in path.name and path.is_file()]
