"""S3 stores on a fake server, and on real ones, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.s3_servers import S3Server
from tests.unit.storage_backends.fake_s3 import BUCKET, FakeS3

from pagefall_storage.protocol import Key
from pagefall_storage.s3 import S3Backend, open_s3

KEYS = [Key(f"space/{i:02}") for i in range(32)]


@asynccontextmanager
async def open_on(server: FakeS3, **config: object) -> AsyncIterator[S3Backend]:
    """With a key pair, unless `config` says otherwise."""
    fields: dict[str, object] = {
        "bucket": BUCKET,
        "endpoint_url": server.endpoint_url,
        "access_key_id": "key",
        "secret_access_key": "secret",
        "num_threads": 8,
    }
    fields |= config
    store = await open_s3({name: value for name, value in fields.items() if value is not None}, value_bytes=None)
    try:
        yield store
    finally:
        server.heal()
        await store.aclose()


@asynccontextmanager
async def open_bucket(server: S3Server, bucket: str, **config: object) -> AsyncIterator[S3Backend]:
    """Of a real server."""
    store = await open_s3(server.config(bucket, **config), value_bytes=None)
    try:
        yield store
    finally:
        await store.aclose()


def forget_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path_name: str) -> None:
    """Nothing of this machine's credentials is seen; files of credentials are looked for under the name given."""
    for variable in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AWS_{variable}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path_name}.config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", tmp_path_name)
