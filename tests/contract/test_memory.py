"""The memory backend is a backend."""

from __future__ import annotations

from pathlib import Path

from pagefall_storage.memory import open_memory
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.testing import BackendConformance


class TestMemory(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        return await open_memory({}, value_bytes=None)


class TestMemoryWithAQuota(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        return await open_memory({"max_bytes": "32MiB"}, value_bytes=None)
