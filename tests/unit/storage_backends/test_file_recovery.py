"""What a killed process leaves behind, and what the next one makes of it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.storage_backends import writer_process
from tests.unit.storage_backends.stores import num_bytes_on_disk, open_store, stored_keys, temp_files
from tests.unit.storage_backends.writer_process import NUM_BYTES, value_of

from pagefall_storage.file_temp import TempFolder, clean_up
from pagefall_storage.protocol import Hit, Key

pytestmark = pytest.mark.anyio

NUM_ROUNDS = 4


def write_and_kill(folder: Path, seed: int, max_bytes: int) -> list[Key]:
    """Lets a process write until it has told of some values and a little longer. Returns those it told of."""
    command = [sys.executable, writer_process.__file__, str(folder), str(seed), str(max_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        time.sleep(random.Random(seed).uniform(0.0, 0.02))
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode == -signal.SIGKILL
    return [Key(name) for line in lines if line.endswith("\n") for name in line.split()]


async def assert_whole(folder: Path, *, max_bytes: int, acknowledged: list[Key]) -> None:
    async with open_store(folder, max_bytes=max_bytes) as store:
        assert [path.name for path in temp_files(folder) if path.is_file()] == ["lock"]
        keys = sorted(await stored_keys(store))
        assert set(acknowledged) <= set(keys)
        buffers = [bytearray(NUM_BYTES) for _ in keys]
        assert await store.get(keys, [memoryview(buffer) for buffer in buffers]) == [Hit()] * len(keys)
        assert buffers == [value_of(key) for key in keys]
        usage = await store.usage()
        assert usage.num_values == len(keys)
        assert usage.num_bytes == num_bytes_on_disk(folder) <= max_bytes


async def test_after_kill_9_all_that_was_acknowledged_is_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    acknowledged = []
    num_orphans = 0
    for seed in range(NUM_ROUNDS):
        acknowledged += write_and_kill(tmp_path, seed, max_bytes=10**9)
        num_orphans += len([path for path in temp_files(tmp_path) if path.name.isdigit()])
        await assert_whole(tmp_path, max_bytes=10**9, acknowledged=acknowledged)
    assert num_orphans > 0, "it was never killed while it wrote"


async def test_after_kill_9_in_a_full_store_the_quota_holds(tmp_path: Path) -> None:
    max_bytes = 20 * NUM_BYTES
    for seed in range(NUM_ROUNDS):
        write_and_kill(tmp_path, seed, max_bytes)
        await assert_whole(tmp_path, max_bytes=max_bytes, acknowledged=[])


async def test_what_a_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, writer_process.__file__, str(tmp_path), "1", str(10**9)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert clean_up(tmp_path) == 0
        assert process.stdout.readline().endswith("\n")
        assert process.poll() is None
        process.kill()
        process.stdout.read()
    assert clean_up(tmp_path) == 1
    assert temp_files(tmp_path) == []


def test_a_folder_that_has_no_lock_yet_is_taken_only_when_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / ".temp" / "just-made").mkdir(parents=True)
    (tmp_path / ".temp" / "foreign").mkdir()
    (tmp_path / ".temp" / "foreign" / "file").touch()
    (tmp_path / ".temp" / "stray").touch()
    assert clean_up(tmp_path) == 0
    assert [path.name for path in temp_files(tmp_path)] == ["foreign", "file", "stray"]


def test_folders_and_links_among_the_orphans_go_too(tmp_path: Path) -> None:
    orphaned = tmp_path / ".temp" / "dead"
    (orphaned / "3" / "deep").mkdir(parents=True)
    (orphaned / "lock").touch()
    (orphaned / "4").symlink_to(tmp_path)
    assert clean_up(tmp_path) == 1
    assert temp_files(tmp_path) == []
    assert tmp_path.exists()


def test_two_temporary_folders_of_one_process_are_apart(tmp_path: Path) -> None:
    first, second = TempFolder(tmp_path), TempFolder(tmp_path)
    assert clean_up(tmp_path) == 0
    assert first.new_path() != second.new_path()
    first.close()
    assert len([path for path in temp_files(tmp_path) if path.is_dir()]) == 1
    second.close()
    assert temp_files(tmp_path) == []


def test_nothing_to_clean_up_is_no_trouble(tmp_path: Path) -> None:
    assert clean_up(tmp_path) == 0
