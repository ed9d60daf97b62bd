"""`pagefall serve` over a fake model and a store of which no call ends, nor can be: `silent_server.py PORT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import cast

from tests.byte_tokenizer import byte_tokenizer
from tests.fake_backend import FakeBackend
from tests.fake_server import FakePagedModel
from tests.fake_tiers import MovingCopier
from tests.filled_store import NAMESPACE

from pagefall import app
from pagefall.config import HttpConfig, ServeConfig, TierConfig
from pagefall.model.engine import PagedModel
from pagefall.model.spec import ModelSpec
from pagefall.tiers.host_memory import HostMemory
from pagefall_storage import registry

NUM_HOST_PAGES = 64


class SilentBackend(FakeBackend):
    def __init__(self) -> None:
        super().__init__()
        self.is_stubborn = True
        self.gates = {"contains": asyncio.Event(), "get": asyncio.Event(), "put": asyncio.Event()}


async def open_silent(config: Mapping[str, object], *, value_bytes: int | None) -> SilentBackend:
    return SilentBackend()


def load_fake(config: ServeConfig, spec: ModelSpec) -> app._Loaded:
    model = FakePagedModel(crash=False)
    memory = HostMemory(model.slots[0].nbytes, NUM_HOST_PAGES, pinned=False)
    host = memory, MovingCopier(model, memory)
    return app._Loaded(cast("PagedModel", model), byte_tokenizer(), None, host, NAMESPACE)


if __name__ == "__main__":
    registry._BUILT_IN["silent"] = "tests.faults.silent_server:open_silent"
    app._load = load_fake
    app._LEAVING_SECONDS = 0.5  # type: ignore[misc]
    tiers = TierConfig(
        enable_hierarchical_cache=True,
        hicache_storage_backend="silent",
        hicache_storage_deadline=0.2,
        hicache_prefetch_threshold=16,
    )
    sys.exit(app.serve(ServeConfig(tiers=tiers, http=HttpConfig(port=int(sys.argv[1])))))
