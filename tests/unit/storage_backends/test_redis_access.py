"""Who may use a Redis server, and over what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tests.redis_servers import RedisServer, free_port, running
from tests.unit.storage_backends.redis_stores import open_store
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, GetOutcome, Hit, Key, Miss, Stored

pytestmark = pytest.mark.anyio

KEY = Key("a/b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(tmp_path / "redis") as server:
        yield server


def reason_of(outcome: GetOutcome) -> str:
    assert isinstance(outcome, Failed)
    assert outcome.kind == "error"
    return outcome.reason


async def test_without_the_password_nothing_works_and_nothing_raises(server: RedisServer) -> None:
    server.admin.config_set("requirepass", "secret")
    for password in (None, "wrong"):
        async with open_store(server, password=password) as store:
            (outcome,) = await get(store, [KEY])
            assert "auth" in reason_of(outcome).lower() or "password" in reason_of(outcome)
            assert [type(outcome) for outcome in await put(store, [KEY])] == [Failed]
            with pytest.raises(StorageError, match=r"(?i)auth|password"):
                await store.contains([KEY])
            with pytest.raises(StorageError, match=r"(?i)auth|password"):
                await stored_keys(store)
            with pytest.raises(StorageError, match=r"(?i)auth|password"):
                await store.usage()
    async with open_store(server, password="secret") as store:
        assert await put(store, [KEY]) == [Stored()]
    async with open_store(url=f"redis://:secret@127.0.0.1:{server.port}") as store:
        assert await get(store, [KEY]) == [Hit()]
        assert "secret" not in store.description


async def test_a_password_that_changes_at_run_time_is_read_again_from_its_file(
    server: RedisServer, tmp_path: Path
) -> None:
    password_file = tmp_path / "password"
    password_file.write_text("first\n")
    server.admin.config_set("requirepass", "first")
    async with open_store(server, password_file=str(password_file)) as store:
        assert await put(store, [KEY]) == [Stored()]
        server.admin.config_set("requirepass", "second")
        server.admin.client_kill_filter(_type="normal", skipme=True)
        (outcome,) = await get(store, [KEY])
        assert "password" in reason_of(outcome)
        password_file.write_text("second\n")
        assert await get(store, [KEY]) == [Hit()]


async def test_a_user_with_just_the_rights_it_needs_can_do_everything(server: RedisServer) -> None:
    """The ones that the documentation names, but for one that only newer servers know, and which may be missing."""
    rights = "~pagefall:* +exists +get +getrange +set +unlink +expire +scan +strlen +object|idletime +info"
    server.admin.execute_command("ACL SETUSER", "cache", "on", ">pw", "resetkeys", "-@all", *rights.split())
    async with open_store(server, username="cache", password="pw", ttl_seconds=600) as store:
        assert await put(store, [KEY]) == [Stored()]
        assert await get(store, [KEY, Key("c")]) == [Hit(), Miss()]
        assert await store.contains([KEY]) == 1
        assert (await store.usage()).num_values == 1
        assert [value.last_used is not None async for value in store.scan()] == [True]
        assert await store.delete([KEY]) == 1
        assert {entry["object"] for entry in server.admin.acl_log()} <= {"client|no-touch", "client"}


async def test_a_user_that_may_only_read_reads_and_its_expiry_is_complained_of_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.admin.execute_command("ACL SETUSER", "reader", "on", ">pw", "~*", "-@all", "+@read", "-@dangerous")
    server.admin.set("pagefall:a/b", (KEY.encode() * 100)[:100])
    async with open_store(server, username="reader", password="pw", ttl_seconds=600) as store:
        for _ in range(2):
            assert await get(store, [KEY]) == [Hit()]
        (warning,) = [record.getMessage() for record in caplog.records if record.name == "pagefall_storage.redis"]
        assert "does not put its expiry off: NOPERM" in warning
        (outcome,) = await put(store, [KEY])
        assert isinstance(outcome, Failed)
        assert outcome.reason.startswith("NOPERM")
        with pytest.raises(StorageError, match="NOPERM"):
            await store.delete([KEY])
        assert (await store.usage()).max_bytes is None


async def test_a_socket_file_will_do(server: RedisServer) -> None:
    async with open_store(url=f"unix://{server.socket_path}?db=2") as store:
        assert await put(store, [KEY]) == [Stored()]
        assert server.admin.info("keyspace")["db2"]["keys"] == 1


class Authority:
    """Certificates that one authority of our own has signed, in files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca_file)
        self.server_file = str(folder / "server.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.server_file)
        self.client_file = str(folder / "client.pem")
        authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(self.client_file)

    def options(self, port: int, *, asks_clients: bool) -> tuple[str, ...]:
        return (
            f"tls-port {port}",
            f"tls-cert-file {self.server_file}",
            f"tls-key-file {self.server_file}",
            f"tls-ca-cert-file {self.ca_file}",
            f"tls-auth-clients {'yes' if asks_clients else 'no'}",
        )


async def test_over_tls_the_server_is_known_by_its_authority(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    url = f"rediss://127.0.0.1:{port}"
    with running(tmp_path / "redis", *authority.options(port, asks_clients=False)):
        async with open_store(url=url, tls_ca_file=authority.ca_file) as store:
            keys = [Key(f"{i}") for i in range(20)]
            assert await put(store, keys, num_bytes=300_000) == [Stored()] * 20
            assert await get(store, keys, num_bytes=300_000) == [Hit()] * 20
        async with open_store(url=url) as store:
            (outcome,) = await get(store, [KEY])
            assert "certificate verify failed" in reason_of(outcome)
        async with open_store(url=url, tls_verify=False) as store:
            assert await get(store, [KEY]) == [Miss()]


async def test_over_tls_a_server_may_ask_who_we_are(tmp_path: Path) -> None:
    authority, port = Authority(tmp_path), free_port()
    url, certificate = f"rediss://127.0.0.1:{port}", authority.client_file
    with running(tmp_path / "redis", *authority.options(port, asks_clients=True)):
        async with open_store(url=url, tls_ca_file=authority.ca_file) as store:
            assert isinstance((await get(store, [KEY]))[0], Failed)
        async with open_store(
            url=url, tls_ca_file=authority.ca_file, tls_cert_file=certificate, tls_key_file=certificate
        ) as store:
            assert await get(store, [KEY]) == [Miss()]


async def test_what_does_not_speak_tls_is_an_error(server: RedisServer) -> None:
    """It waits for the end of a line, and we for its answer."""
    async with open_store(url=f"rediss://127.0.0.1:{server.port}", connect_timeout_seconds=0.3) as store:
        assert [type(outcome) for outcome in await get(store, [KEY])] == [Failed]
