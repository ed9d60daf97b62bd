"""Who shares a store finds the same identity in it; who has another one finds another."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.redis_servers import RedisServer, running, running_cluster
from tests.s3_servers import S3Server, moto

from pagefall_storage.errors import StorageError
from pagefall_storage.file import open_file
from pagefall_storage.identity import MARK, identify, mark_of_folder
from pagefall_storage.memory import open_memory
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.redis import open_redis
from pagefall_storage.s3 import open_s3
from pagefall_storage.stacked import Stacked


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
async def opened() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def kept(opened: AsyncExitStack, store: StorageBackend) -> StorageBackend:
    """Closed with the test."""
    opened.push_async_callback(store.aclose)
    return store


async def test_a_folder_is_the_same_whatever_it_is_called(opened: AsyncExitStack, tmp_path: Path) -> None:
    async def folder(path: Path) -> StorageBackend:
        return await kept(opened, await open_file({"path": str(path), "min_free_bytes": 0}, value_bytes=None))

    one, other = await folder(tmp_path / "one"), await folder(tmp_path / "other")
    (tmp_path / "mounted elsewhere").symlink_to(tmp_path / "one")
    again = await folder(tmp_path / "mounted elsewhere")
    at_once = await asyncio.gather(*(identify(store) for store in (one, again, one, again)))
    assert len(set(at_once)) == 1
    assert at_once[0] is not None
    assert await identify(other) not in (None, at_once[0])


async def test_a_folder_that_is_gone_says_nothing(opened: AsyncExitStack, tmp_path: Path) -> None:
    store = await kept(opened, await open_file({"path": str(tmp_path / "s"), "min_free_bytes": 0}, value_bytes=None))
    (tmp_path / "s" / ".temp").rename(tmp_path / "temp")
    (tmp_path / "s").rmdir()
    with pytest.raises(StorageError):
        await identify(store)


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("damaged", [b"", b"\xff" * 32, b"0" * 31, b"0" * 32 + b"\n"])
def test_a_damaged_mark_is_replaced(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / MARK).write_bytes(damaged)
    made = mark_of_folder(tmp_path)
    assert made == mark_of_folder(tmp_path) == (tmp_path / MARK).read_text()
    assert made.encode() != damaged
    assert marks(tmp_path) == [MARK]


def test_a_folder_without_links_has_a_mark_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert mark_of_folder(tmp_path) == mark_of_folder(tmp_path)
    assert marks(tmp_path) == [MARK]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)
    for _ in range(3):
        with pytest.raises(OSError, match="full"):
            mark_of_folder(tmp_path)
    assert marks(tmp_path) == []


async def test_a_redis_is_the_same_however_it_is_reached(opened: AsyncExitStack, redis_server: RedisServer) -> None:
    async def redis(**config: object) -> str | None:
        return await identify(await kept(opened, await open_redis(config, value_bytes=None)))

    tcp, socket = redis_server.url, f"unix://{redis_server.socket_path}?db=0"
    assert await redis(url=tcp, read_only=True) is None, "nothing was written yet"
    first, *same = [await redis(url=url) for url in (tcp, socket, tcp.replace("127.0.0.1", "localhost"))]
    assert first is not None
    assert set(same) == {first}
    assert await redis(url=tcp, read_only=True) == first
    others = [await redis(url=tcp, key_prefix="p:"), await redis(url=socket.replace("db=0", "db=1"))]
    assert len({first, None, *others}) == 4
    redis_server.admin.flushall()
    assert await redis(url=tcp) not in (None, first)


async def test_a_cluster_is_the_same_from_each_of_its_nodes(
    opened: AsyncExitStack, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        found = []
        for node in nodes:
            store = await open_redis({"url": f"redis+cluster://127.0.0.1:{node.port}"}, value_bytes=None)
            found.append(await identify(await kept(opened, store)))
        await opened.aclose()
    assert len(set(found)) == 1
    assert found[0] is not None


async def test_a_bucket_is_the_same_for_all_with_one_prefix(opened: AsyncExitStack, s3_server: S3Server) -> None:
    bucket, other = s3_server.new_bucket(), s3_server.new_bucket()

    async def s3(config: Mapping[str, object], **more: object) -> str | None:
        return await identify(await kept(opened, await open_s3({**config, **more}, value_bytes=None)))

    assert await s3(s3_server.config(bucket), read_only=True) is None
    first = await s3(s3_server.config(bucket))
    assert first is not None
    assert await s3(s3_server.config(bucket)) == first
    assert await s3(s3_server.config(bucket), read_only=True) == first
    others = [await s3(s3_server.config(bucket), prefix="p/"), await s3(s3_server.config(other))]
    assert len({first, None, *others}) == 4


async def test_a_stack_is_what_its_farthest_member_is(opened: AsyncExitStack, tmp_path: Path) -> None:
    async def folder(name: str) -> StorageBackend:
        return await open_file({"path": str(tmp_path / name), "min_free_bytes": 0}, value_bytes=None)

    stack = await kept(opened, Stacked([await folder("near"), await folder("far")]))
    far = await kept(opened, await folder("far"))
    assert await identify(stack) == await identify(far) is not None
    assert await identify(await kept(opened, await open_memory({}, value_bytes=None))) is None
