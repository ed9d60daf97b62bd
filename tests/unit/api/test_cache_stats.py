from __future__ import annotations

import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, FakeEngine

from pagefall.api.app import create_app
from pagefall.api.cache_stats import PoolFacts
from pagefall.config import HttpConfig, InsightConfig
from pagefall.insight.series import TrafficSeries
from pagefall.messages import ControllerStats, Direction, PoolStats, SchedulerStats, TransferStats
from pagefall_storage.config import ByteSize

pytestmark = pytest.mark.anyio

START = 1_700_000_000.0
STATS = SchedulerStats(
    num_running=3,
    num_queued=1,
    device_pages=PoolStats(total=10, free=3, leased=1, cached=6, pinned=2),
    host_pages=PoolStats(total=20, free=12, leased=0, cached=8, pinned=1),
    num_prompt_tokens=200,
    num_cached_tokens=110,
    num_device_tokens=60,
    num_host_tokens=30,
    num_storage_tokens=20,
    num_computed_tokens=85,
    num_unreached_tokens=5,
    num_known_tokens=150,
    num_missed_tokens={"diverged": 70, "page_tail": 15, "unreached": 5},
    num_generated_tokens=44,
    num_evicted_pages=9,
    num_evicted_host_pages=7,
    saved_seconds=1.25,
    num_preemptions=2,
)
TRANSFERS: dict[Direction, TransferStats] = {
    "device_to_host": TransferStats(num_pages=4, num_bytes=4096, num_transfers=2, seconds=0.5)
}
TIERS = ControllerStats(
    transfers=TRANSFERS,
    num_storage_outcomes={"hit": 12, "corrupt:checksum": 1},
    num_storage_failures={"timeout": 3},
    breaker="half_open",
    storage_backend="file",
    storage_description="files in /mnt/nvme",
    storage_num_pages=8,
    storage_used_bytes=1000,
    storage_limit_bytes=ByteSize(2000),
)


class EngineWithStats(FakeEngine):
    def __init__(self) -> None:
        super().__init__()
        self.snapshot = STATS

    def stats(self) -> SchedulerStats:
        return self.snapshot


class Server:
    """The application over an engine with figures, on clocks of its own; samples are taken by hand."""

    def __init__(self) -> None:
        self.engine = EngineWithStats()
        self.engine.tiers = TIERS
        self.elapsed = 0.0
        self.series = TrafficSeries(
            window_seconds=300.0, clock=lambda: self.elapsed, unix_clock=lambda: START + self.elapsed
        )

    def sample(self, at: float) -> None:
        self.elapsed = at
        self.series.sample(self.engine.stats(), self.engine.controller_stats())

    async def get(self, path: str) -> httpx.Response:
        facts = PoolFacts(page_size=16, device_bytes=160, host_bytes=320)
        app = create_app(
            self.engine,
            HttpConfig(),
            insight=InsightConfig(redact_prompts=True),
            series=self.series,
            facts=facts,
        )
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.get(path)


async def test_one_document_has_all_that_the_snapshots_say() -> None:
    server = Server()
    server.elapsed = 10.0
    response = await server.get("/cache/stats")
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert body.pop("series")["times"] == []
    assert set(body.pop("ttft")) == {"device", "host", "storage", "none"}
    version = body.pop("version")
    assert version.count(".") == 2
    rate = {
        "seconds": 10.0,
        "num_prompt_tokens": 200,
        "total": 0.55,
        "by_tier": {"device": 0.3, "host": 0.15, "storage": 0.1},
        "ceiling": 0.75,
    }
    assert body == {
        "model": MODEL,
        "context_length": 1000,
        "time": START + 10,
        "started_at": START,
        "uptime_seconds": 10.0,
        "redact_prompts": True,
        "page_size": 16,
        "num_running": 3,
        "num_queued": 1,
        "tiers": {
            "device": {
                "pages": {"total": 10, "free": 3, "leased": 1, "cached": 6, "pinned": 2},
                "num_tokens": 160,
                "num_cached_tokens": 96,
                "num_bytes": 160,
                "num_evicted_pages": 9,
            },
            "host": {
                "pages": {"total": 20, "free": 12, "leased": 0, "cached": 8, "pinned": 1},
                "num_tokens": 320,
                "num_cached_tokens": 128,
                "num_bytes": 320,
                "num_evicted_pages": 7,
            },
            "storage": {
                "storage_backend": "file",
                "storage_description": "files in /mnt/nvme",
                "breaker": "half_open",
                "num_storage_outcomes": {"hit": 12, "corrupt:checksum": 1},
                "num_storage_failures": {"timeout": 3},
                "storage_used_bytes": 1000,
                "storage_limit_bytes": 2000,
                "storage_num_pages": 8,
            },
        },
        "hit_rate": {"window": rate, "since_start": rate},
        "num_prompt_tokens": 200,
        "num_tokens_by_source": {"device": 60, "host": 30, "storage": 20, "computed": 85, "unreached": 5},
        "num_known_tokens": 150,
        "num_missed_tokens": {"diverged": 70, "page_tail": 15, "unreached": 5},
        "num_generated_tokens": 44,
        "saved_seconds": 1.25,
        "num_preemptions": 2,
        "transfers": {"device_to_host": {"num_pages": 4, "num_bytes": 4096, "num_transfers": 2, "seconds": 0.5}},
    }


async def test_a_server_without_lower_tiers_has_none_to_show() -> None:
    server = Server()
    server.engine.snapshot = SchedulerStats(
        num_running=0, num_queued=0, device_pages=PoolStats(total=1, free=1, leased=0, cached=0, pinned=0)
    )
    server.engine.tiers = None
    body = (await server.get("/cache/stats")).json()
    assert (body["tiers"]["host"], body["tiers"]["storage"], body["transfers"]) == (None, None, {})
    assert body["hit_rate"]["window"]["total"] is None


async def test_a_detached_store_is_not_shown() -> None:
    server = Server()
    server.engine.tiers = ControllerStats(transfers=TRANSFERS)
    body = (await server.get("/cache/stats")).json()
    assert body["tiers"]["storage"] is None
    assert body["transfers"]["device_to_host"]["num_pages"] == 4


async def test_the_series_goes_on_from_the_time_that_the_client_names() -> None:
    server = Server()
    for at in (0.0, 2.0, 4.0):
        server.sample(at)
    whole = (await server.get("/cache/stats")).json()["series"]
    assert whole["times"] == [START + 2, START + 4]
    assert whole["num_running"] == [3, 3]
    assert (whole["interval_seconds"], whole["smoothing_seconds"]) == (2.0, 30.0)
    later = (await server.get(f"/cache/stats?since={START + 2}")).json()["series"]
    assert later["times"] == [START + 4]


@pytest.mark.parametrize("since", ["yesterday", "nan", "inf", ""])
async def test_a_time_that_is_none_is_refused(since: str) -> None:
    response = await Server().get(f"/cache/stats?since={since}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "since")


async def test_a_parameter_that_means_nothing_is_refused() -> None:
    response = await Server().get("/cache/stats?from=1")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "from")
