"""Open Redis stores for tests, and what there is in the server behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.redis_servers import RedisServer

from pagefall_storage.protocol import StorageBackend
from pagefall_storage.redis import open_redis


@asynccontextmanager
async def open_store(server: RedisServer | None = None, **config: object) -> AsyncIterator[StorageBackend]:
    """`config`: of the backend, the URL too if it is not the server's own."""
    if server is not None:
        config = {"url": server.url} | config
    store = await open_redis(config, value_bytes=None)
    try:
        yield store
    finally:
        await store.aclose()


def names_in(server: RedisServer) -> set[str]:
    return {str(name, "ascii") for name in server.admin.scan_iter()}
