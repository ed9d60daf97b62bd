"""The S3 backend is a backend, on moto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.s3_servers import S3Server, moto

from pagefall_storage.protocol import StorageBackend
from pagefall_storage.s3 import open_s3
from pagefall_storage.testing import BackendConformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


class TestS3OnMoto(BackendConformance):
    @pytest.fixture(autouse=True)
    def use(self, server: S3Server) -> None:
        self.server = server

    async def make(self, folder: Path) -> StorageBackend:
        return await open_s3(self.server.config(self.server.new_bucket()), value_bytes=None)
