"""The SQLite store is a backend, and keeps what it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefall_storage.errors import StorageConfigError
from pagefall_storage.protocol import Hit, PutItem, StorageBackend, Stored
from pagefall_storage.registry import open_backend
from pagefall_storage.testing import BackendConformance, page_keys


class TestSqlite(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        return await open_backend("sqlite", {"path": str(folder / "pages.db")}, value_bytes=None)

    async def test_values_are_there_when_it_is_opened_again(self, tmp_path: Path) -> None:
        (key,) = page_keys(1)
        store = await self.make(tmp_path)
        assert await store.put([PutItem(key, memoryview(b"kept"))]) == [Stored()]
        await store.aclose()
        again = await self.make(tmp_path)
        buffer = bytearray(4)
        assert await again.get([key], [memoryview(buffer)]) == [Hit()]
        assert buffer == b"kept"
        await again.aclose()

    async def test_a_path_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StorageConfigError, match=f"path: cannot use {tmp_path}/missing/pages.db"):
            await self.make(tmp_path / "missing")
