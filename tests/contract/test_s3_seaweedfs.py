"""The S3 backend is a backend, on SeaweedFS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.s3_servers import S3Server, seaweedfs

from pagefall_storage.protocol import Hit, PutItem, StorageBackend, Stored
from pagefall_storage.s3 import open_s3
from pagefall_storage.testing import BackendConformance, page_keys, random_values


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


class TestS3OnSeaweedFS(BackendConformance):
    @pytest.fixture(autouse=True)
    def use(self, server: S3Server) -> None:
        self.server = server

    async def make(self, folder: Path) -> StorageBackend:
        return await open_s3(
            self.server.config(self.server.new_bucket(), prefix="some/prefix", num_threads=4), value_bytes=None
        )

    async def test_of_ten_servers_that_store_one_page_the_first_does_and_it_stays(self, server: S3Server) -> None:
        (key,), values = page_keys(1), random_values(10, 368_768)
        bucket = server.new_bucket()
        stores = [await open_s3(server.config(bucket, num_threads=2), value_bytes=None) for _ in values]
        puts = [store.put([PutItem(key, memoryview(value))]) for store, value in zip(stores, values, strict=True)]
        assert await asyncio.gather(*puts) == [[Stored()]] * 10
        read = [bytearray(368_768) for _ in stores]
        for store, buffer in zip(stores, read, strict=True):
            assert await store.get([key], [memoryview(buffer)]) == [Hit()]
            await store.aclose()
        assert read[0] in values
        assert all(buffer == read[0] for buffer in read)
