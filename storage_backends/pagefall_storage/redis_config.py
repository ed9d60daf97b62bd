"""What a user says about a Redis store, and the servers that its URL names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

from pagefall_storage.config import parse_config
from pagefall_storage.errors import StorageConfigError

_WHERE: Final = 'storage backend "redis"'
_FORMS: Final = (
    "redis://HOST[:PORT][/DB], rediss://... for TLS, unix:///PATH[?db=DB], "
    "redis+sentinel://HOST[:PORT],.../SERVICE[/DB], redis+cluster://HOST[:PORT],..."
)
_SCHEME: Final = re.compile(r"(?P<tls>rediss|redis)(?:\+(?P<kind>sentinel|cluster))?")
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServerTarget(msgspec.Struct, frozen=True):
    """One server, reached over TCP."""

    address: Address
    db: int


class SocketTarget(msgspec.Struct, frozen=True):
    """One server on this machine, reached through a socket file."""

    path: str
    db: int


class SentinelTarget(msgspec.Struct, frozen=True):
    """The server that the Sentinels call the master of `service`."""

    sentinels: tuple[Address, ...]
    service: str
    db: int


class ClusterTarget(msgspec.Struct, frozen=True):
    """A Redis Cluster, some of whose nodes are at `nodes`."""

    nodes: tuple[Address, ...]


Target = ServerTarget | SocketTarget | SentinelTarget | ClusterTarget


class RedisConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`url`: one of the forms of docs/storage-redis.md; a user name and a password may stand in it.

    `username`, `password`: instead of those in the URL. `password_file` is read again for each new connection. The
    Sentinels have credentials of their own.

    Names in Redis are `key_prefix` and the key. A value expires `ttl_seconds` after it was last stored or read; None:
    never. `read_only`: nothing is written, not even that a value was read. `max_connections` to each server.
    A connection is given up that is not there after `connect_timeout_seconds`.

    `tls_ca_file` None: the system's authorities. `tls_cert_file`, `tls_key_file`: who we are, if the server asks.
    `tls_verify` false: whoever the server is.
    """

    url: str
    username: str | None = None
    password: str | None = None
    password_file: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    key_prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9:._/-]{0,64}$")] = "pagefall:"
    ttl_seconds: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    read_only: bool = False
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    connect_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify: bool = True


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that can be used, its URL taken apart."""

    target: Target
    uses_tls: bool
    username: str | None
    password: str | None
    config: RedisConfig


def parse_redis_config(config: Mapping[str, object]) -> RedisSettings:
    """Raises `StorageConfigError`, whose message never repeats a password."""
    parsed = parse_config(config, RedisConfig, where=_WHERE)
    try:
        url = urlsplit(parsed.url)
        target, uses_tls = _target(url)
        settings = RedisSettings(
            target=target,
            uses_tls=uses_tls,
            username=parsed.username or _credential(url, 0),
            password=parsed.password or _credential(url, 1),
            config=parsed,
        )
        _check(settings)
    except ValueError as error:
        raise StorageConfigError(f"{_WHERE}: {error}") from None  # its cause may quote the URL
    return settings


def describe(settings: RedisSettings) -> str:
    """Where, without secrets."""
    tls = "s" if settings.uses_tls else ""
    match settings.target:
        case ServerTarget(address, db):
            return f"redis{tls}://{address}/{db}"
        case SocketTarget(path, db):
            return f"unix://{path}?db={db}"
        case SentinelTarget(sentinels, service, db):
            return f"redis{tls}+sentinel://{','.join(map(str, sentinels))}/{service}/{db}"
        case ClusterTarget(nodes):
            return f"redis{tls}+cluster://{','.join(map(str, nodes))}"


def _target(url: SplitResult) -> tuple[Target, bool]:
    options = parse_qs(url.query, keep_blank_values=True)
    if url.scheme == "unix":
        db = options.pop("db", ["0"])[-1]
        _check_no_more(options)
        if url.hostname is not None or not url.path.startswith("/"):
            raise ValueError("url: the path of a socket is absolute, unix:///run/redis/redis.sock")
        return SocketTarget(unquote(url.path), _db(db)), False
    _check_no_more(options)
    scheme = _SCHEME.fullmatch(url.scheme)
    if scheme is None:
        raise ValueError(f"url: {url.scheme or 'nothing'}:// is none of {_FORMS}")
    uses_tls = scheme["tls"] == "rediss"
    parts = [unquote(part) for part in url.path.split("/") if part]
    match scheme["kind"], parts:
        case None, []:
            return ServerTarget(_one_address(url), 0), uses_tls
        case None, [db]:
            return ServerTarget(_one_address(url), _db(db)), uses_tls
        case "sentinel", [service]:
            return SentinelTarget(_addresses(url, _SENTINEL_PORT), service, 0), uses_tls
        case "sentinel", [service, db]:
            return SentinelTarget(_addresses(url, _SENTINEL_PORT), service, _db(db)), uses_tls
        case "cluster", [] | ["0"]:
            return ClusterTarget(_addresses(url, _PORT)), uses_tls
        case "cluster", _:
            raise ValueError("url: a cluster has database 0 only")
        case _:
            raise ValueError(f"url: what follows the host is none of {_FORMS}")


def _check_no_more(options: Mapping[str, object]) -> None:
    if options:
        raise ValueError(f"url: ?{next(iter(options))}= is not understood; settings are fields beside the URL")


def _one_address(url: SplitResult) -> Address:
    addresses = _addresses(url, _PORT)
    if len(addresses) > 1:
        raise ValueError("url: several hosts are for redis+sentinel:// and redis+cluster://")
    return addresses[0]


def _addresses(url: SplitResult, default_port: int) -> tuple[Address, ...]:
    addresses = []
    for part in url.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{part}")
        if not one.hostname:
            raise ValueError("url: a host is missing")
        try:
            port = one.port or default_port
        except ValueError:
            raise ValueError(f"url: {part!r} has no usable port") from None
        addresses.append(Address(one.hostname, port))
    return tuple(addresses)


def _credential(url: SplitResult, index: int) -> str | None:
    """Of the user name (0) and the password (1)."""
    user, _, password = url.netloc.rpartition("@")[0].partition(":")
    return unquote((user, password)[index]) or None


def _db(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"url: {text!r} is no number of a database")
    return int(text)


def _check(settings: RedisSettings) -> None:
    config = settings.config
    if settings.password and config.password_file:
        raise ValueError("give a password or a password_file, not both")
    if settings.username and not (settings.password or config.password_file):
        raise ValueError("username: a password is missing")
    if config.sentinel_password and not isinstance(settings.target, SentinelTarget):
        raise ValueError("sentinel_password: the url names no Sentinels")
    if config.sentinel_username and not config.sentinel_password:
        raise ValueError("sentinel_username: sentinel_password is missing")
    tls = {name: getattr(config, name) for name in ("tls_ca_file", "tls_cert_file", "tls_key_file")}
    if not settings.uses_tls and (any(tls.values()) or not config.tls_verify):
        raise ValueError("TLS settings, but the url does not begin with rediss")
    if config.tls_key_file and not config.tls_cert_file:
        raise ValueError("tls_key_file: tls_cert_file is missing")
    for name, path in (tls | {"password_file": config.password_file}).items():
        if path and not Path(path).is_file():
            raise ValueError(f"{name}: there is no file {path}")
