"""The benchmark of a store's transfers runs over the server's own client, and cleans up after itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.fake_backend import FakeBackend

from pagefall.bench import store_transfers
from pagefall.bench.store_transfers import TransfersBenchConfig, cells, measure_transfers
from pagefall.errors import ConfigError, PagefallError
from pagefall_storage.protocol import Failed, GetOutcome, Key

pytestmark = pytest.mark.anyio

CONFIG = TransfersBenchConfig(num_pages=40, page_bytes=1000, repeats=2)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    store = FakeBackend()

    async def open_fake(name: str, extra_config: Mapping[str, object], *, value_bytes: int) -> FakeBackend:
        assert value_bytes == 1128
        return store

    monkeypatch.setattr(store_transfers, "open_backend", open_fake)
    return store


async def test_pages_go_there_and_back_and_are_deleted(store: FakeBackend, tmp_path: Path) -> None:
    store.values[Key("mine")] = b"x"
    rows = await measure_transfers(CONFIG, tmp_path)
    assert [row.what for row in rows] == ["at rest", "backup", "restore"]
    assert [row.bytes_per_second is None for row in rows] == [True, False, False]
    assert sum(len(keys) for name, keys in store.calls if name == "put") == 80
    assert sum(len(keys) for name, keys in store.calls if name == "get") == 80
    assert store.values == {"mine": b"x"}
    assert store.is_closed


async def test_a_loop_that_is_held_up_is_late(
    store: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = store.get

    async def hold_up(*arguments: object) -> list[GetOutcome]:
        await asyncio.sleep(0.01)
        time.sleep(0.05)
        return await get(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "get", hold_up)
    rest, _, restore = await measure_transfers(CONFIG, tmp_path)
    assert max(restore.lags_seconds) > 0.04
    assert rest.lags_seconds


async def test_a_store_without_settings_is_a_folder_of_the_runs_own(tmp_path: Path) -> None:
    rows = await measure_transfers(CONFIG, tmp_path)
    assert len(rows) == 3
    assert (tmp_path / "pages").is_dir()


async def test_a_store_that_does_not_take_pages_or_does_not_give_them_is_an_error(
    store: FakeBackend, tmp_path: Path
) -> None:
    store.put_failures = [Failed("full", "no room")]
    with pytest.raises(PagefallError, match=r"took 39 of 40 pages; failures: .*full"):
        await measure_transfers(CONFIG, tmp_path)
    assert store.values == {}
    store.errors["get"] = ConnectionResetError("gone")
    with pytest.raises(PagefallError, match=r"gave .*error.* of its pages"):
        await measure_transfers(CONFIG, tmp_path)


async def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="url"):
        await measure_transfers(TransfersBenchConfig(backend="redis", extra_config="{}"), tmp_path)


async def test_the_table_has_milliseconds() -> None:
    row = store_transfers.TransferRow(what="restore", bytes_per_second=2e9, lags_seconds=(0.001, 0.001, 0.02))
    assert cells([row])[1] == ["restore", "2,000", "1.00", "19.62", "20.00"]
