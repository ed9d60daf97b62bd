"""The Redis backend is a backend: over TCP, over a socket file with its options, and in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.redis_servers import RedisServer, running, running_cluster

from pagefall_storage.protocol import StorageBackend
from pagefall_storage.redis import open_redis
from pagefall_storage.testing import BackendConformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with running_cluster(tmp_path_factory.mktemp("redis")) as nodes:
        yield nodes


class TestRedis(BackendConformance):
    @pytest.fixture(autouse=True)
    def on_an_empty_server(self, server: RedisServer) -> None:
        server.admin.flushall()
        self._server = server

    async def make(self, folder: Path) -> StorageBackend:
        return await open_redis({"url": self._server.url}, value_bytes=None)


class TestRedisThroughASocketFileWithExpiryAndOneConnection(BackendConformance):
    @pytest.fixture(autouse=True)
    def on_an_empty_server(self, server: RedisServer) -> None:
        server.admin.flushall()
        self._server = server

    async def make(self, folder: Path) -> StorageBackend:
        config = {
            "url": f"unix://{self._server.socket_path}?db=3",
            "ttl_seconds": 600,
            "max_connections": 1,
            "key_prefix": "",
        }
        return await open_redis(config, value_bytes=None)


class TestRedisCluster(BackendConformance):
    @pytest.fixture(autouse=True)
    def on_an_empty_cluster(self, nodes: list[RedisServer]) -> None:
        for node in nodes:
            node.admin.flushall()
        self._nodes = nodes

    async def make(self, folder: Path) -> StorageBackend:
        url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)
        return await open_redis({"url": url}, value_bytes=None)
