from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from pagefall.bench.transfers import difference, parse_moved, settled
from pagefall.errors import PagefallError

pytestmark = pytest.mark.anyio

TEXT = """\
# HELP pagefall_transfer_bytes_total Bytes moved between tiers
# TYPE pagefall_transfer_bytes_total counter
pagefall_transfer_bytes_total{direction="device_to_host"} 3.6864e+06
pagefall_transfer_bytes_total{direction="storage_to_host"} %d
# HELP pagefall_steps_total Forward steps run
# TYPE pagefall_steps_total counter
pagefall_steps_total 7.0
"""


def test_bytes_are_read_by_direction_and_absent_ones_are_0() -> None:
    assert parse_moved(TEXT % 42) == {
        "device_to_host": 3_686_400,
        "host_to_device": 0,
        "host_to_storage": 0,
        "storage_to_host": 42,
    }


def test_a_server_without_tiers_has_moved_nothing() -> None:
    assert set(parse_moved("pagefall_steps_total 7.0\n").values()) == {0}


def test_the_difference_is_by_direction() -> None:
    moved = difference(parse_moved(TEXT % 50), parse_moved(TEXT % 42))
    assert moved == {"device_to_host": 0, "host_to_device": 0, "host_to_storage": 0, "storage_to_host": 8}


def counting(values: Iterator[int]) -> httpx.AsyncClient:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=TEXT % next(values)))
    return httpx.AsyncClient(base_url="http://fake", transport=transport)


async def test_settled_waits_until_two_readings_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefall.bench.transfers._QUIET_SECONDS", 0.001)
    async with counting(iter([1, 5, 9, 9])) as http:
        assert (await settled(http))["storage_to_host"] == 9


async def test_pages_that_never_rest_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefall.bench.transfers._QUIET_SECONDS", 0.001)
    monkeypatch.setattr("pagefall.bench.transfers._SETTLE_SECONDS", 0.05)
    async with counting(iter(range(10**9))) as http:
        with pytest.raises(PagefallError, match="pages still move"):
            await settled(http)


async def test_a_server_without_metrics_is_named() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(404))
    async with httpx.AsyncClient(base_url="http://fake", transport=transport) as http:
        with pytest.raises(PagefallError, match=r"http://fake: .*404"):
            await settled(http)
