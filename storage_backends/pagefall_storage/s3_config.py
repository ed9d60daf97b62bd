"""What a user says about an S3 store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from pagefall_storage.config import parse_config
from pagefall_storage.errors import StorageConfigError

_WHERE: Final = 'storage backend "s3"'
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{3,255}|arn:[^\s]+")

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class S3Config(msgspec.Struct, frozen=True, kw_only=True):
    """`bucket` exists already. Values are objects whose names begin with `prefix`.

    `endpoint_url`: where the server is; None: AWS, or what AWS_ENDPOINT_URL says. `path_style` puts the bucket into the
    path, not into the host name; None: just where `endpoint_url` is given.

    `access_key_id` and `secret_access_key`, and a `session_token` that goes with some: None leaves them to the standard
    chain (environment, files, web identity, container, instance), which refreshes what expires. `region` None: theirs.

    At most `num_threads` requests are under way. A connection not there after `connect_timeout_seconds`, or silent for
    `read_timeout_seconds`, is given up. `read_only`: nothing is written or deleted.
    """

    bucket: str
    endpoint_url: str | None = None
    prefix: str = ""
    region: str | None = None
    path_style: bool | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    num_threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    connect_timeout_seconds: Seconds = 2.0
    read_timeout_seconds: Seconds = 5.0
    read_only: bool = False

    @property
    def object_prefix(self) -> str:
        """What every object's name begins with: nothing, or a path that ends with a slash."""
        path = self.prefix.strip("/")
        return f"{path}/" if path else ""

    @property
    def addressing_style(self) -> str:
        """Botocore's name for what `path_style` means."""
        is_path_style = self.endpoint_url is not None if self.path_style is None else self.path_style
        return "path" if is_path_style else "auto"


def parse_s3_config(config: Mapping[str, object]) -> S3Config:
    """Raises `StorageConfigError`."""
    parsed = parse_config(config, S3Config, where=_WHERE)
    if not _BUCKET.fullmatch(parsed.bucket):
        raise StorageConfigError(f"{_WHERE}: bucket: {parsed.bucket!r} cannot be one's name")
    if parsed.endpoint_url is not None:
        _check_endpoint(parsed.endpoint_url)
    if (parsed.access_key_id is None) != (parsed.secret_access_key is None):
        raise StorageConfigError(f"{_WHERE}: access_key_id and secret_access_key: give both or neither")
    if parsed.session_token is not None and parsed.access_key_id is None:
        raise StorageConfigError(f"{_WHERE}: session_token: give access_key_id and secret_access_key too")
    return parsed


def _check_endpoint(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StorageConfigError(f"{_WHERE}: endpoint_url: not a URL such as https://s3.example.com: {url!r}")
    if parts.username is not None or parts.path not in ("", "/") or parts.query:
        raise StorageConfigError(f"{_WHERE}: endpoint_url: scheme, host and port alone; keys and bucket are fields")
