"""The file backend is a backend, with and without its options, and so is one behind a wrapper."""

from __future__ import annotations

from pathlib import Path

from pagefall_storage.file import open_file
from pagefall_storage.memory import open_memory
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.registry import open_backend
from pagefall_storage.testing import BackendConformance, Faulty


class TestFile(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        return await open_file({"path": str(folder / "store"), "min_free_bytes": 0}, value_bytes=None)


class TestFileWithAQuotaAndFsync(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        config = {"path": str(folder), "max_bytes": "32MiB", "fsync": True, "num_threads": 2, "min_free_bytes": 0}
        return await open_file(config, value_bytes=None)


class TestThrottledFile(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        throttle = {"bytes_per_second": 20e9, "latency_seconds": 0.0001}
        config = {"path": str(folder), "min_free_bytes": 0, "throttle": throttle}
        return await open_backend("file", config, value_bytes=None)


class TestFaultyWithoutFaults(BackendConformance):
    async def make(self, folder: Path) -> StorageBackend:
        return Faulty(await open_memory({}, value_bytes=None))
