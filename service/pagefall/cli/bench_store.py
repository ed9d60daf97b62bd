"""The store of a benchmark: which one, and its settings."""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.cli.extra_config import check_backend, read_extra_config
from pagefall.cli.flags import Flag
from pagefall.cli.parser import Given, GivenValues
from pagefall_storage.registry import known_backends

STORE_FLAGS: Final = (
    Flag("backend", "the store: file, redis, s3 or an installed plug-in", "NAME"),
    Flag("extra-config", "the store's settings; absent: of a file store, a folder of this run's own", "JSON|@FILE"),
)


def resolve_store(given: GivenValues) -> GivenValues:
    """`given` with the store's settings read. Raises `ConfigError`, also for a store that is not known."""
    resolved = dict(given)
    if "backend" in resolved:
        check_backend(resolved["backend"].value, resolved["backend"].source, known_backends())
    if "extra-config" in resolved:
        settings = read_extra_config(resolved["extra-config"])
        resolved["extra-config"] = Given(msgspec.json.encode(settings).decode(), resolved["extra-config"].source)
    return resolved
