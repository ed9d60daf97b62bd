"""The S3 store where all goes well: what it asks the server for, and who it says that it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.unit.storage_backends.fake_s3 import FakeS3, fake_s3
from tests.unit.storage_backends.s3_stores import KEYS, forget_credentials, open_on
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.protocol import Failed, Hit, Key, Stored
from pagefall_storage.registry import open_backend
from pagefall_storage.s3 import S3Backend, open_s3
from pagefall_storage.s3_client import S3Clients
from pagefall_storage.s3_config import S3Config
from pagefall_storage.s3_errors import RequestFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[FakeS3]:
    with fake_s3() as server:
        yield server


async def test_it_is_opened_by_its_name(server: FakeS3) -> None:
    config = {"bucket": "pages", "endpoint_url": server.endpoint_url, "access_key_id": "a", "secret_access_key": "b"}
    store = await open_backend("s3", config, value_bytes=None)
    assert isinstance(store, S3Backend)
    await store.aclose()


async def test_the_description_says_where_it_is_and_no_secret(server: FakeS3) -> None:
    async with open_on(server, prefix="a/b", read_only=True, secret_access_key="hidden") as store:
        assert store.description == f"s3://pages/a/b/ at {server.endpoint_url.removeprefix('http://')}, read-only"


async def test_a_configuration_that_botocore_refuses_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_credentials(monkeypatch, f"{tmp_path}/credentials")
    with pytest.raises(StorageConfigError, match="endpoint"):
        await open_s3({"bucket": "pages", "endpoint_url": "http://a_b..c:1"}, value_bytes=None)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageConfigError, match="nobody"):
        await open_s3({"bucket": "pages"}, value_bytes=None)


async def test_a_key_is_one_folder_and_a_name_below_the_prefix(server: FakeS3) -> None:
    async with open_on(server, prefix="some/where") as store:
        await put(store, [Key("a"), Key("a/b"), Key("a/b/c")])
        assert set(server.objects) == {"some/where/_/a", "some/where/a/b", "some/where/a.b/c"}


async def test_objects_that_no_key_has_are_neither_listed_nor_counted(server: FakeS3) -> None:
    async with open_on(server, prefix="some/where") as store:
        await put(store, KEYS[:5])
        for name in ("other/space/00", "some/where/a", "some/where/a/b/c", "some/where/a/B", "some/where/a/", "a/b"):
            server.objects[name] = b"x"
        assert await stored_keys(store) == set(KEYS[:5])
        assert (await store.usage()).num_values == 5


async def test_a_value_of_the_same_length_is_left_as_it_is(server: FakeS3) -> None:
    async with open_on(server) as store:
        server.objects["space/00"] = b"x" * 100
        assert await put(store, KEYS[:1], 100) == [Stored()]
        assert server.objects["space/00"] == b"x" * 100
        assert server.num_requests == {"PUT": 1, "HEAD": 1}


async def test_a_connection_is_used_again_after_each_request(server: FakeS3) -> None:
    async with open_on(server, num_threads=1) as store:
        for num_bytes in (0, 1, 100_000):
            keys = [Key(f"of-{num_bytes}-bytes/{i}") for i in range(5)]
            await put(store, keys, num_bytes)
            assert await get(store, keys, num_bytes) == [Hit()] * 5
        assert server.num_connections == 1


async def test_deleting_many_takes_one_request_beside_looking(server: FakeS3) -> None:
    async with open_on(server) as store:
        await put(store, KEYS[:20])
        assert await store.delete([*KEYS[:30], *KEYS[:30]]) == 20
        assert server.num_requests == {"PUT": 20, "HEAD": 30, "POST": 1}
        assert not server.objects


async def test_asking_for_many_keys_takes_few_requests(server: FakeS3) -> None:
    keys = [Key(f"space/{i:04}") for i in range(1000)]
    async with open_on(server, num_threads=16) as store:
        server.objects |= dict.fromkeys(keys, b"x")
        assert await store.contains(keys) == 1000
        assert server.num_requests == {"HEAD": 16}


async def test_a_read_only_store_is_only_read(server: FakeS3) -> None:
    server.objects["space/00"] = b"space/00"
    async with open_on(server, read_only=True) as store:
        assert await put(store, KEYS[1:2]) == [Failed("error", "the store is read-only")]
        with pytest.raises(StorageError, match="read-only"):
            await store.delete(KEYS[:1])
        assert await get(store, KEYS[:1], 8) == [Hit()]
        assert set(server.num_requests) == {"GET"}


async def test_a_closed_store_says_so(server: FakeS3) -> None:
    async with open_on(server) as store:
        await store.aclose()
        (read,), (written,) = await get(store, KEYS[:1]), await put(store, KEYS[:1])
        for outcome in (read, written):
            assert isinstance(outcome, Failed)
            assert "closed" in outcome.reason
        with pytest.raises(StorageError, match="closed"):
            await store.contains(KEYS[:1])


async def test_credentials_that_expire_are_refreshed_by_the_standard_chain(
    server: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a container's agent gives them: each answer has another key, which is good for a minute."""
    forget_credentials(monkeypatch, f"{tmp_path}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.endpoint_url}/credentials")
    num_keys = 0

    def next_key() -> bytes:
        nonlocal num_keys
        num_keys += 1
        server.access_keys = {f"key-{num_keys}"}
        expires_at = datetime.now(UTC) + timedelta(minutes=1)
        return json.dumps(
            {"AccessKeyId": f"key-{num_keys}", "SecretAccessKey": "s", "Token": "t"}
            | {"Expiration": expires_at.isoformat()}
        ).encode()

    server.credentials = next_key
    async with open_on(server, num_threads=1, access_key_id=None, secret_access_key=None) as store:
        assert await put(store, KEYS[:1]) == [Stored()]
        first = num_keys
        assert await get(store, KEYS[:1]) == [Hit()]
        assert num_keys > first  # a minute is less than what botocore waits for


async def test_credentials_in_a_file_are_read_again_once_they_are_refused(
    server: FakeS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"
    forget_credentials(monkeypatch, str(credentials))
    credentials.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = s\n")
    server.access_keys = {"new"}
    now = time.monotonic()
    config = S3Config(bucket="pages", endpoint_url=server.endpoint_url)
    store = S3Backend(config, S3Clients(config, clock=lambda: now))
    try:
        assert await put(store, KEYS[:1]) == [Failed("error", "InvalidAccessKeyId: as told")]
        credentials.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = s\n")
        assert await put(store, KEYS[:1]) == [Failed("error", "InvalidAccessKeyId: as told")]  # too soon
        now += 60
        assert await put(store, KEYS[:1]) == [Failed("error", "InvalidAccessKeyId: as told")]  # which is noticed
        assert await put(store, KEYS[:1]) == [Stored()]
    finally:
        await store.aclose()


async def test_a_store_without_credentials_opens_and_finds_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"
    forget_credentials(monkeypatch, str(credentials))
    now = 0.0
    clients = S3Clients(S3Config(bucket="pages", endpoint_url="http://127.0.0.1:1"), clock=lambda: now)
    with pytest.raises(RequestFailed, match="credentials"):
        clients.current()
    credentials.write_text("[default]\naws_access_key_id = a\naws_secret_access_key = s\n")
    with pytest.raises(RequestFailed, match="credentials"):
        clients.current()
    now = 60.0
    assert clients.current() is clients.current()
    clients.close()
    assert isinstance(await open_s3({"bucket": "pages"}, value_bytes=None), S3Backend)
