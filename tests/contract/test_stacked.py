"""Several stores are one, whatever they are."""

from __future__ import annotations

from pathlib import Path

from pagefall_storage.memory import open_memory
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.registry import open_backend
from pagefall_storage.stacked import Stacked
from pagefall_storage.testing import BackendConformance, Fail, Faulty


class TestFilesOverMemory(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        config = {"file": {"path": str(folder), "min_free_bytes": 0}, "memory": {}}
        return await open_backend("file,memory", config, value_bytes=None)


class TestMemoryOverFiles(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        config = {"file": {"path": str(folder), "min_free_bytes": 0}}
        return await open_backend("memory, file", config, value_bytes=None)


class TestAnEmptyStoreOverMemory(BackendConformance):
    """Everything is read from the farther member, and put into the nearer one, which never keeps it."""

    async def make(self, folder: Path) -> StorageBackend:
        nearest = Faulty(await open_memory({}, value_bytes=None))
        nearest.inject(Fail("full"), on={"put"})
        return Stacked([nearest, await open_memory({}, value_bytes=None)])
