"""What the file store does beyond what every backend does."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from tests.unit.storage_backends.stores import (
    get,
    num_bytes_on_disk,
    open_store,
    path_of,
    put,
    stored_keys,
    temp_files,
    value_of,
)

from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.file import open_file
from pagefall_storage.protocol import Corrupt, Failed, Hit, Key, Miss, Stored
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

KEYS = page_keys(6)
KEY = KEYS[0]


async def test_a_value_is_one_file_under_namespace_and_shard(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, [Key("abcd/0123456789")])
        assert (tmp_path / "abcd" / "01" / "0123456789").read_bytes() == value_of(Key("abcd/0123456789"), 100)


async def test_values_are_there_after_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        assert await put(store, KEYS) == [Stored()] * 6
    async with open_store(tmp_path) as store:
        assert await store.contains(KEYS) == 6
        assert await get(store, KEYS) == [Hit()] * 6
        usage = await store.usage()
        assert (usage.num_values, usage.num_bytes) == (6, 600)


async def test_the_order_of_use_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, KEYS[:3])
    for i, key in enumerate(KEYS[:3]):
        os.utime(path_of(tmp_path, key), (1000 + i, 1000 + i))
    async with open_store(tmp_path) as store:
        await get(store, KEYS[:1])
        await put(store, KEYS[1:2])  # it is there already: that is use, too
    async with open_store(tmp_path, max_bytes=300) as store:
        await put(store, KEYS[3:4])
        assert await stored_keys(store) == {KEYS[0], KEYS[1], KEYS[3]}


async def test_the_quota_holds_and_still_does_after_a_restart(tmp_path: Path) -> None:
    async with open_store(tmp_path, max_bytes=350) as store:
        for key in KEYS[:5]:
            assert await put(store, [key]) == [Stored()]
            assert num_bytes_on_disk(tmp_path) <= 350
        assert (await store.usage()).num_evicted == 2
    async with open_store(tmp_path, max_bytes=350) as store:
        assert await put(store, KEYS[5:]) == [Stored()]
        assert num_bytes_on_disk(tmp_path) == 300


async def test_a_smaller_quota_holds_from_the_start(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, KEYS)
    async with open_store(tmp_path, max_bytes=250) as store:
        assert num_bytes_on_disk(tmp_path) == 200
        assert (await store.usage()).num_bytes == 200


async def test_of_a_batch_larger_than_the_quota_the_first_values_are_kept(tmp_path: Path) -> None:
    async with open_store(tmp_path, max_bytes=250) as store:
        outcomes = await put(store, KEYS)
        assert outcomes[:2] == [Stored(), Stored()]
        assert [outcome.kind for outcome in outcomes[2:] if isinstance(outcome, Failed)] == ["full"] * 4
        assert await store.contains(KEYS) == 2


async def test_the_watermark_evicts_and_then_refuses(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, KEYS[:3])
    status = os.statvfs(tmp_path)
    too_much = status.f_blocks * status.f_frsize  # no file system has all of it free
    async with open_store(tmp_path, min_free_bytes=too_much) as store:
        (outcome,) = await put(store, KEYS[3:4])
        assert isinstance(outcome, Failed)
        assert outcome.kind == "full"
        assert await get(store, KEYS[:3]) == [Hit()] * 3


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_told_from_other_errors_and_leaves_nothing(tmp_path: Path, code: int) -> None:
    """Each value's second half does not fit any more."""

    def write(fd: int, value: memoryview) -> int:
        if len(value) <= 50:
            raise OSError(code, os.strerror(code))
        return os.write(fd, value[: len(value) - 50])

    async with open_store(tmp_path, write=write) as store:
        outcomes = await put(store, KEYS)
        assert {outcome.kind for outcome in outcomes if isinstance(outcome, Failed)} == {"full"}
        assert await get(store, KEYS) == [Miss()] * 6
        assert num_bytes_on_disk(tmp_path) == 0
        assert (await store.usage()).num_bytes == 0


async def test_failed_writes_give_their_room_back(tmp_path: Path) -> None:
    is_broken = True

    def write(fd: int, value: memoryview) -> int:
        if is_broken:
            raise OSError(errno.EIO, "broken")
        return os.write(fd, value)

    async with open_store(tmp_path, max_bytes=300, write=write) as store:
        for _ in range(3):
            outcomes = await put(store, KEYS[:3])
            assert {outcome.kind for outcome in outcomes if isinstance(outcome, Failed)} == {"error"}
        is_broken = False
        assert await put(store, KEYS[:3]) == [Stored()] * 3


async def test_writes_in_small_parts_make_whole_values(tmp_path: Path) -> None:
    async with open_store(tmp_path, write=lambda fd, value: os.write(fd, value[:7])) as store:
        assert await put(store, KEYS) == [Stored()] * 6
        assert await get(store, KEYS) == [Hit()] * 6


def _link_loop(path: Path) -> None:
    path.symlink_to(path)


def _link_to_a_value(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(bytes(100))
    path.symlink_to(elsewhere)


def _full_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"x")


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("place", [Path.mkdir, _full_folder, _link_loop, _link_to_a_value, os.mkfifo, _socket])
@pytest.mark.parametrize("heal", ["put", "delete"])
async def test_what_is_not_a_file_is_corrupt_until_it_is_replaced(tmp_path: Path, place: object, heal: str) -> None:
    async with open_store(tmp_path) as store:
        await put(store, [KEY])
        path = path_of(tmp_path, KEY)
        path.unlink()
        assert callable(place)
        place(path)
        assert await get(store, [KEY]) == [Corrupt("not a file")]
        if heal == "put":
            assert await put(store, [KEY]) == [Stored()]
            assert await get(store, [KEY]) == [Hit()]
        else:
            assert await store.delete([KEY]) == 1
            assert await get(store, [KEY]) == [Miss()]
        assert {path.name for path in temp_files(tmp_path) if path.is_file()} == {"lock"}


async def test_what_is_not_a_file_is_not_contained_and_not_counted(tmp_path: Path) -> None:
    path_of(tmp_path, KEY).mkdir(parents=True)
    async with open_store(tmp_path) as store:
        assert await store.contains([KEY]) == 0
        assert await stored_keys(store) == set()
        assert (await store.usage()).num_values == 0


async def test_a_value_cut_short_is_corrupt_until_it_is_put_again(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, [KEY])
        os.truncate(path_of(tmp_path, KEY), 60)
        assert await get(store, [KEY]) == [Corrupt("short")]
        assert await put(store, [KEY]) == [Stored()]
        assert await get(store, [KEY]) == [Hit()]


async def test_files_that_no_key_has_are_left_alone(tmp_path: Path) -> None:
    foreign = [tmp_path / "note.txt", tmp_path / "ns" / "ab" / "zz-elsewhere", tmp_path / "ns" / "ab" / "ab.tmp"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    async with open_store(tmp_path, max_bytes=100) as store:
        await put(store, KEYS[:1])
        await put(store, KEYS[1:2])
        assert await stored_keys(store) == {KEYS[1]}
    assert all(path.exists() for path in foreign)


async def test_a_store_whose_folder_is_wiped_while_it_is_open_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with open_store(folder) as store:
        await put(store, KEYS)
        folder.rename(tmp_path / "gone")
        assert await get(store, KEYS) == [Miss()] * 6
        assert await put(store, KEYS) == [Stored()] * 6
        assert await get(store, KEYS) == [Hit()] * 6


async def test_a_thousand_values_are_listed_without_being_read(tmp_path: Path) -> None:
    keys = page_keys(1000)
    for i, key in enumerate(keys):
        path = path_of(tmp_path, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, i)
        path.chmod(0)
    async with open_store(tmp_path) as store:
        assert await store.contains(keys) == 1000
        usage = await store.usage()
        assert (usage.num_values, usage.num_bytes) == (1000, sum(range(1000)))


async def test_closing_leaves_no_temporary_folder(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await put(store, KEYS)
        assert temp_files(tmp_path)
    assert temp_files(tmp_path) == []


async def test_the_path_comes_from_the_configuration_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(tmp_path / "sglang"))
    await _open_and_close({})
    monkeypatch.setenv("PAGEFALL_STORAGE_DIR", str(tmp_path / "pagefall"))
    await _open_and_close({})
    await _open_and_close({"path": str(tmp_path / "given")})
    assert {path.name for path in tmp_path.iterdir()} == {"sglang", "pagefall", "given"}


async def test_without_a_path_the_error_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", raising=False)
    monkeypatch.delenv("PAGEFALL_STORAGE_DIR", raising=False)
    with pytest.raises(StorageConfigError, match=r'{"path": ...}.*PAGEFALL_STORAGE_DIR'):
        await open_file({}, value_bytes=None)


@pytest.mark.parametrize("path", ["file", "file/below"])
async def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageConfigError, match=f"cannot use {tmp_path}/{path}: not a folder"):
        await open_file({"path": str(tmp_path / path)}, value_bytes=None)


async def test_a_folder_that_cannot_be_made_now_is_a_store_that_is_down() -> None:
    with pytest.raises(StorageError, match="cannot use /proc/no-such-disk: "):
        await open_file({"path": "/proc/no-such-disk"}, value_bytes=None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_bytes": 99}, "max_bytes: 99 is less than one value, 100 bytes"),
        ({"num_threads": 0}, "num_threads"),
        ({"max_size": 1}, 'unknown field "max_size"'),
    ],
)
async def test_a_configuration_that_cannot_be_used_is_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(StorageConfigError, match=message):
        await open_file({"path": str(tmp_path), **config}, value_bytes=100)


async def _open_and_close(config: dict[str, object]) -> None:
    store = await open_file(config, value_bytes=None)
    await store.aclose()
