"""A store at start, when it may be down, and while the server runs, when nothing may go wrong for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fake_backend import FakeBackend
from tests.redis_servers import RedisServer, free_port

from pagefall.config import TierConfig
from pagefall.errors import ConfigError
from pagefall.tiers import opening
from pagefall.tiers.opening import OpenStore, StoreRefusedError, open_at_start, open_to_attach, trouble_of
from pagefall_storage import registry
from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, Key, PutItem, StorageBackend, Stored

pytestmark = pytest.mark.anyio

KEY = Key("a/b")
DEADLINE_SECONDS = 0.5


async def start(backend: str, extra: Mapping[str, Any], *, is_required: bool = False) -> OpenStore:
    config = TierConfig(
        enable_hierarchical_cache=True,
        hicache_storage_backend=backend,
        hicache_storage_backend_extra_config=msgspec.json.encode(extra).decode(),
        hicache_storage_deadline=DEADLINE_SECONDS,
        hicache_storage_required=is_required,
    )
    store = await open_at_start(config, value_bytes=100)
    assert store is not None
    return store


async def attach(backend: str, extra: Mapping[str, Any]) -> StorageBackend:
    return await open_to_attach(backend, extra, value_bytes=100, deadline_seconds=DEADLINE_SECONDS)


def redis_down() -> Mapping[str, Any]:
    return {"url": f"redis://127.0.0.1:{free_port()}"}


def s3_down() -> Mapping[str, Any]:
    return {
        "bucket": "pages",
        "endpoint_url": f"http://127.0.0.1:{free_port()}",
        "region": "us-east-1",
        "access_key_id": "k",
        "secret_access_key": "s",
    }


def disk_down() -> Mapping[str, Any]:
    return {"path": "/proc/no-such-disk"}


DOWN: dict[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
    "redis": ("redis", redis_down),
    "s3": ("s3", s3_down),
    "file": ("file", disk_down),
}


@pytest.mark.parametrize("kind", DOWN)
async def test_a_store_that_is_down_is_a_degraded_start_with_one_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, extra = DOWN[kind]
    store = await start(name, extra())
    assert store.trouble is not None
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == (
        f"starting without the store, which is used as soon as it answers: {store.backend.description}: {store.trouble}"
    )
    assert "\n" not in record.getMessage()
    await store.backend.aclose()


@pytest.mark.parametrize("kind", DOWN)
async def test_a_store_that_is_required_and_down_is_an_error_in_one_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, extra = DOWN[kind]
    with pytest.raises(ConfigError, match=r"^--hicache-storage-required: the store does not answer: .+: .+") as failed:
        await start(name, extra(), is_required=True)
    assert "\n" not in str(failed.value)
    assert not caplog.records


async def test_a_redis_that_is_started_later_is_used_then(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    store = await start("redis", {"url": server.url})
    try:
        server.start()
        assert await store.backend.put([PutItem(KEY, memoryview(b"x"))]) == [Stored()]
    finally:
        await store.backend.aclose()
        server.kill()


async def test_a_disk_that_is_mounted_later_is_used_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def fail(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", fail)
    store = await start("file", {"path": str(tmp_path / "store"), "min_free_bytes": 0})
    assert store.trouble is not None
    assert "Permission denied" in store.trouble
    monkeypatch.setattr(Path, "mkdir", make)
    assert await store.backend.put([PutItem(KEY, memoryview(b"x"))]) == [Stored()]
    assert str(tmp_path / "store") in store.backend.description
    await store.backend.aclose()


async def test_a_store_that_answers_is_used_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = await start("file", {"path": str(tmp_path)}, is_required=True)
    assert store.trouble is None
    assert not caplog.records
    await store.backend.aclose()


async def test_settings_that_cannot_be_used_are_an_error_whatever_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='unknown field "pth"'):
        await start("file", {"pth": str(tmp_path)})
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        await start("file", {"path": str(tmp_path / "file")})


class Plug:
    """A plug-in, whose stores are made here."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def open(self, config: Mapping[str, object], *, value_bytes: int | None) -> StorageBackend:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.backend


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    plug = Plug()
    monkeypatch.setattr(registry, "load", lambda found: plug.open)
    return plug


async def test_a_store_that_does_not_open_in_time_is_down_until_it_has(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENING_SECONDS", 0.01)
    plug.gate.clear()
    store = await start("memory", {})
    assert store.trouble == "no answer within 0.01 s"
    plug.gate.set()
    assert await store.backend.put([PutItem(KEY, memoryview(b"x"))]) == [Stored()]
    assert plug.backend.values


async def test_what_is_wrong_with_a_store_is_one_line(plug: Plug) -> None:
    store = plug.backend
    assert await trouble_of(store, seconds=1.0) is None
    store.errors["contains"] = StorageError("no\nroute")
    assert await trouble_of(store, seconds=1.0) == "no route"
    store.errors["contains"] = ZeroDivisionError("a bug")
    assert await trouble_of(store, seconds=1.0) == "ZeroDivisionError: a bug"
    del store.errors["contains"]
    store.get_failures[opening._SOME_KEY] = Failed("error", "no such bucket")
    assert await trouble_of(store, seconds=1.0) == "no such bucket"
    gate = store.gates["contains"] = asyncio.Event()
    store.is_stubborn = True
    assert await trouble_of(store, seconds=0.01) == "no answer within 0.01 s"
    gate.set()


async def test_a_store_to_attach_is_open_and_answers(tmp_path: Path) -> None:
    store = await attach("file", {"path": str(tmp_path)})
    assert await store.contains([KEY]) == 0
    await store.aclose()


@pytest.mark.parametrize(
    ("backend", "extra", "param", "words"),
    [
        ("fil", {}, "backend", 'unknown storage backend "fil"; known: '),
        ("file", {"pth": "x"}, "extra_config", 'unknown field "pth"; did you mean "path"?'),
        ("file", disk_down(), None, "cannot use /proc/no-such-disk: "),
        ("redis", redis_down(), None, "redis"),
    ],
)
async def test_a_store_that_cannot_be_attached_says_what_is_at_fault(
    backend: str, extra: Mapping[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(StoreRefusedError) as refused:
        await attach(backend, extra)
    assert refused.value.param == param
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_store_with_a_bug_is_refused_and_one_that_does_not_answer_is_closed_again(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug.error = ZeroDivisionError("a bug")
    with pytest.raises(StoreRefusedError, match=r"^ZeroDivisionError: a bug$"):
        await attach("memory", {})
    plug.error = None
    plug.backend.errors["contains"] = StorageError("no route")
    with pytest.raises(StoreRefusedError, match=r"^a fake store: no route$"):
        await attach("memory", {})
    assert plug.backend.is_closed


async def test_a_store_that_opens_after_it_was_given_up_is_closed_at_once(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "OPENING_SECONDS", 0.01)
    plug.gate.clear()
    with pytest.raises(StoreRefusedError, match="no answer within"):
        await attach("memory", {})
    plug.gate.set()
    while not plug.backend.is_closed:
        await asyncio.sleep(0)
