"""Several stores are one, whatever they are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.s3_servers import S3Server, moto

from pagefall.tiers.guarded_stack import guarded_stack
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


class TestGuardedMembers(BackendConformance):
    """As a server stacks them."""

    async def make(self, folder: Path) -> StorageBackend:
        members = [
            await open_backend("file", {"path": str(folder), "min_free_bytes": 0}, value_bytes=None),
            await open_memory({}, value_bytes=None),
        ]
        return guarded_stack(members, deadline_seconds=20.0, value_bytes=1000, clock=time.monotonic)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


class TestFilesOverS3(BackendConformance):
    @pytest.fixture(autouse=True)
    def use(self, server: S3Server) -> None:
        self.server = server

    async def make(self, folder: Path) -> StorageBackend:
        config = {
            "file": {"path": str(folder), "min_free_bytes": 0},
            "s3": self.server.config(self.server.new_bucket()),
        }
        return await open_backend("file,s3", config, value_bytes=None)
