"""How many bytes a server has moved between its tiers, read from its metrics."""

from __future__ import annotations

from typing import Final, get_args

import anyio
import httpx
from prometheus_client.parser import text_string_to_metric_families

from pagefall.errors import PagefallError
from pagefall.messages import Direction

DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
_METRIC: Final = "pagefall_transfer_bytes_total"
_QUIET_SECONDS: Final = 0.5
_SETTLE_SECONDS: Final = 60.0

MovedBytes = dict[Direction, int]


def parse_moved(text: str) -> MovedBytes:
    """The counters in Prometheus' text format, by direction; 0 for what the text does not have."""
    moved = dict.fromkeys(DIRECTIONS, 0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            direction = sample.labels.get("direction")
            if sample.name == _METRIC and direction in moved:
                moved[direction] += int(sample.value)
    return moved


def difference(after: MovedBytes, before: MovedBytes) -> MovedBytes:
    return {direction: after[direction] - before[direction] for direction in DIRECTIONS}


async def settled(http: httpx.AsyncClient) -> MovedBytes:
    """The counters once nothing has moved for half a second. Raises `PagefallError` if that takes over a minute."""
    try:
        with anyio.fail_after(_SETTLE_SECONDS):
            moved = await _read(http)
            while True:
                await anyio.sleep(_QUIET_SECONDS)
                before, moved = moved, await _read(http)
                if moved == before:
                    return moved
    except TimeoutError:
        raise PagefallError(f"{http.base_url}: pages still move after {_SETTLE_SECONDS:.0f} s") from None


async def _read(http: httpx.AsyncClient) -> MovedBytes:
    try:
        response = await http.get("/metrics")
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise PagefallError(f"{http.base_url}: {error or type(error).__name__}") from error
    return parse_moved(response.text)
