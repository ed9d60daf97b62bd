"""The Redis backend is a backend: over TCP and a socket file, with its options, and in a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.redis_servers import RedisServer, running

from pagefall_storage.protocol import StorageBackend
from pagefall_storage.redis import open_redis
from pagefall_storage.testing import BackendConformance


class _OnRedis(BackendConformance):
    options: tuple[str, ...] = ()

    @pytest.fixture(autouse=True)
    async def started(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
        async with running(tmp_path_factory.mktemp("redis"), *self.options) as (self.server, self.admin):
            yield

    server: RedisServer


class TestRedis(_OnRedis):
    async def make(self, folder: Path) -> StorageBackend:
        return await open_redis({"url": self.server.url}, value_bytes=None)
