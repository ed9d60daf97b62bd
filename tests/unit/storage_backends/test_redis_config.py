"""What a user may say about a Redis store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefall_storage.errors import StorageConfigError
from pagefall_storage.redis_config import (
    Address,
    ClusterTarget,
    SentinelTarget,
    ServerTarget,
    SocketTarget,
    Target,
    describe,
    parse_redis_config,
)


@pytest.mark.parametrize(
    ("url", "target", "uses_tls"),
    [
        ("redis://cache", ServerTarget(Address("cache", 6379), 0), False),
        ("redis://cache:7000/5", ServerTarget(Address("cache", 7000), 5), False),
        ("redis://[::1]:7000", ServerTarget(Address("::1", 7000), 0), False),
        ("rediss://cache/", ServerTarget(Address("cache", 6379), 0), True),
        ("unix:///run/redis.sock", SocketTarget("/run/redis.sock", 0), False),
        ("unix:///run/a%20b.sock?db=2", SocketTarget("/run/a b.sock", 2), False),
        (
            "redis+sentinel://a,b:7000/main/1",
            SentinelTarget((Address("a", 26379), Address("b", 7000)), "main", 1),
            False,
        ),
        ("rediss+sentinel://a/main", SentinelTarget((Address("a", 26379),), "main", 0), True),
        ("redis+cluster://a,b:7000", ClusterTarget((Address("a", 6379), Address("b", 7000))), False),
        ("rediss+cluster://a/0", ClusterTarget((Address("a", 6379),)), True),
    ],
)
def test_a_url_names_servers(url: str, target: Target, uses_tls: bool) -> None:
    settings = parse_redis_config({"url": url})
    assert (settings.target, settings.uses_tls) == (target, uses_tls)
    assert parse_redis_config({"url": describe(settings)}).target == target


def test_credentials_may_stand_in_the_url_and_fields_win_over_them() -> None:
    settings = parse_redis_config({"url": "redis://me:a%40b@cache"})
    assert (settings.username, settings.password) == ("me", "a@b")
    settings = parse_redis_config({"url": "redis://:old@cache", "password": "new"})
    assert (settings.username, settings.password) == (None, "new")
    settings = parse_redis_config({"url": "redis+cluster://me:pw@a:1,b:2"})
    assert (settings.username, settings.password) == ("me", "pw")


def test_a_description_has_no_secret() -> None:
    assert describe(parse_redis_config({"url": "redis://me:secret@cache"})) == "redis://cache:6379/0"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "url"),
        ({"url": "redis://a", "tll_seconds": 3}, 'unknown field "tll_seconds"; did you mean "ttl_seconds"'),
        ({"url": "redis://a", "ttl_seconds": 0}, "ttl_seconds"),
        ({"url": "redis://a", "key_prefix": "a*"}, "key_prefix"),
        ({"url": "redis://a", "max_connections": 0}, "max_connections"),
        ({"url": "http://a"}, "http:// is none of redis://"),
        ({"url": "cache:6379"}, "is none of redis://"),
        ({"url": "redis://"}, "a host is missing"),
        ({"url": "redis://a:port"}, "no usable port"),
        ({"url": "redis://a/zero"}, "'zero' is no number"),
        ({"url": "redis://a,b"}, "several hosts"),
        ({"url": "redis://a?timeout=3"}, r"\?timeout= is not understood"),
        ({"url": "redis+sentinel://a"}, "what follows the host"),
        ({"url": "redis+cluster://a/3"}, "database 0 only"),
        ({"url": "unix://run/redis.sock"}, "absolute"),
        ({"url": "redis://a", "username": "me"}, "a password is missing"),
        ({"url": "redis://a", "password": "x", "password_file": "/y"}, "not both"),
        ({"url": "redis://a", "password_file": "/no/such"}, "password_file: there is no file /no/such"),
        ({"url": "redis://a", "sentinel_password": "x"}, "names no Sentinels"),
        ({"url": "redis://a", "tls_verify": False}, "does not begin with rediss"),
        ({"url": "rediss://a", "tls_key_file": "/k"}, "tls_cert_file is missing"),
        ({"url": "rediss://a", "tls_ca_file": "/no/such"}, "tls_ca_file: there is no file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(config: dict[str, object], message: str) -> None:
    with pytest.raises(StorageConfigError, match=rf'^storage backend "redis": .*{message}') as caught:
        parse_redis_config(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://:secret@a:port", "redis://:secret@", "foo://:secret@a", "redis://:secret@a/b"]
)
def test_a_refusal_never_repeats_a_password(url: str) -> None:
    with pytest.raises(StorageConfigError) as caught:
        parse_redis_config({"url": url})
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"


def test_a_password_file_and_certificates_are_taken_where_they_exist(tmp_path: Path) -> None:
    for name in ("password", "ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("x")
    config = {
        "url": "rediss://a",
        "username": "me",
        "password_file": str(tmp_path / "password"),
        "tls_ca_file": str(tmp_path / "ca.pem"),
        "tls_cert_file": str(tmp_path / "cert.pem"),
        "tls_key_file": str(tmp_path / "key.pem"),
    }
    assert parse_redis_config(config).username == "me"
