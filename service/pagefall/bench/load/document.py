"""The result as a JSON document; docs/bench.md explains every field."""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.bench.load.comparison import Compared
from pagefall.bench.load.config import LoadConfig
from pagefall.bench.load.plan import Pace
from pagefall.bench.load.samples import Run
from pagefall.bench.load.shapes import Shape
from pagefall.bench.load.slo import Slo
from pagefall.bench.load.summary import Summary

SCHEMA_NAME: Final = "pagefall-bench-load"
SCHEMA_VERSION: Final = 1
"""Grows when a field changes its meaning or goes; new fields leave it as it is."""

_HIDDEN: Final = "(given)"


class TargetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`fields`: what the server took of the fields that not every server takes."""

    url: str
    model: str
    endpoint: str
    tokens_per_word: float
    fields: list[str]
    summary: Summary | None


class LoadDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured. `started_at` is UTC in ISO 8601. `preset` and `scale` are already in `workload`."""

    schema: str = SCHEMA_NAME
    version: int = SCHEMA_VERSION
    pagefall_version: str
    started_at: str
    is_complete: bool
    seed: int
    preset: str | None
    scale: float
    workload: Shape
    pace: Pace
    slo: Slo | None
    settings: LoadConfig
    targets: dict[str, TargetDocument]
    comparison: list[Compared]
    runs: list[Run]


def encode(document: LoadDocument) -> bytes:
    """Without keys, which are nobody's business."""
    servers = document.settings.servers
    hidden = msgspec.structs.replace(
        servers,
        api_key=servers.api_key and _HIDDEN,
        peer_api_key=servers.peer_api_key and _HIDDEN,
    )
    document = msgspec.structs.replace(document, settings=msgspec.structs.replace(document.settings, servers=hidden))
    return msgspec.json.format(msgspec.json.encode(document), indent=1)
