"""What may be said about an S3 store."""

from __future__ import annotations

import pytest

from pagefall_storage.errors import StorageConfigError
from pagefall_storage.s3_config import S3Config, parse_s3_config


@pytest.mark.parametrize(("prefix", "expected"), [("", ""), ("/", ""), ("a", "a/"), ("/a/b/", "a/b/")])
def test_a_prefix_is_a_folder_however_it_is_written(prefix: str, expected: str) -> None:
    assert S3Config(bucket="pages", prefix=prefix).object_prefix == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "bucket"),
        ({"bucket": "a b"}, "bucket: 'a b' cannot be"),
        ({"bucket": "pages", "bukket": 1}, 'unknown field "bukket"; did you mean "bucket"'),
        ({"bucket": "pages", "num_threads": 0}, "num_threads"),
        ({"bucket": "pages", "read_timeout_seconds": 0}, "read_timeout_seconds"),
        ({"bucket": "pages", "endpoint_url": "example.com:9000"}, "endpoint_url: not a URL"),
        ({"bucket": "pages", "endpoint_url": "http://me:secret@example.com"}, "endpoint_url: scheme, host and port"),
        ({"bucket": "pages", "endpoint_url": "http://example.com/pages"}, "endpoint_url: scheme, host and port"),
        ({"bucket": "pages", "access_key_id": "a"}, "give both or neither"),
        ({"bucket": "pages", "session_token": "a"}, "session_token: give access_key_id"),
    ],
)
def test_what_makes_no_sense_is_refused_and_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(StorageConfigError, match=message) as caught:
        parse_s3_config(config)
    assert "\n" not in str(caught.value)
    assert "secret@" not in str(caught.value)
