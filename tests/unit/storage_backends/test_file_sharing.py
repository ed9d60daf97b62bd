"""Two stores over one folder, as two servers would have it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.unit.storage_backends.stores import get, num_bytes_on_disk, open_store, path_of, put, stored_keys

from pagefall_storage.protocol import Hit, Miss, Stored
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

KEYS = page_keys(64)


async def test_each_sees_what_the_other_wrote(tmp_path: Path) -> None:
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        await put(one, KEYS[:3])
        assert await other.contains(KEYS) == 3
        assert await get(other, KEYS[:4]) == [Hit(), Hit(), Hit(), Miss()]


async def test_what_the_other_deleted_is_a_miss_and_then_not_contained(tmp_path: Path) -> None:
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        await put(one, KEYS[:3])
        assert await other.contains(KEYS) == 3
        assert await one.delete(KEYS[:3]) == 3
        assert await get(other, KEYS[:3]) == [Miss()] * 3
        assert await other.contains(KEYS) == 0
        assert (await other.usage()).num_bytes == 0


async def test_what_the_other_deleted_can_be_put_again(tmp_path: Path) -> None:
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        await put(one, KEYS[:2])
        await other.delete(KEYS[:2])
        assert await put(one, KEYS[:2]) == [Stored()] * 2
        assert await get(one, KEYS[:2]) == [Hit()] * 2


async def test_what_the_other_wrote_already_is_not_written_again(tmp_path: Path) -> None:
    async with open_store(tmp_path) as one, open_store(tmp_path) as other:
        await put(one, KEYS[:1])
        before = path_of(tmp_path, KEYS[0]).stat().st_ino
        assert await put(other, KEYS[:1]) == [Stored()]
        assert path_of(tmp_path, KEYS[0]).stat().st_ino == before


async def test_the_quota_counts_what_the_other_wrote(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path, max_bytes=1000, is_rescan_always_due=True) as one,
        open_store(tmp_path, max_bytes=1000, is_rescan_always_due=True) as other,
    ):
        await put(one, KEYS[:10])
        await put(other, KEYS[10:11])  # it does not know yet that the folder is full
        await put(other, KEYS[11:12])
        assert num_bytes_on_disk(tmp_path) <= 1000
        assert (await other.usage()).num_bytes == num_bytes_on_disk(tmp_path)


async def test_a_rescan_that_finds_too_much_brings_the_folder_back_to_its_quota(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path, max_bytes=300, is_rescan_always_due=True) as one,
        open_store(tmp_path) as without_quota,
    ):
        await put(without_quota, KEYS[:5])
        assert (await one.usage()).num_bytes == num_bytes_on_disk(tmp_path) == 300


async def test_a_store_does_not_evict_what_the_other_used_last(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path, max_bytes=300, is_rescan_always_due=True) as one,
        open_store(tmp_path, max_bytes=300, is_rescan_always_due=True) as other,
    ):
        await put(one, KEYS[:3])
        for i, key in enumerate(KEYS[:3]):
            os.utime(path_of(tmp_path, key), (1000 + i, 1000 + i))
        await get(other, KEYS[:1])
        await put(one, KEYS[3:4])
        assert await stored_keys(one) == {KEYS[0], KEYS[2], KEYS[3]}


async def test_both_working_at_once_never_fail_and_stay_near_the_quota(tmp_path: Path) -> None:
    """Each may write a sixteenth of the quota, and one batch, before it looks at what the other did."""
    max_bytes = 3200
    most_seen = 0

    async with (
        open_store(tmp_path, max_bytes=max_bytes, is_rescan_always_due=True) as one,
        open_store(tmp_path, max_bytes=max_bytes, is_rescan_always_due=True) as other,
    ):

        async def work(store_index: int) -> None:
            nonlocal most_seen
            store = (one, other)[store_index]
            for i in range(40):
                keys = [KEYS[(i * (3 + store_index) + j) % len(KEYS)] for j in range(2)]
                assert await put(store, keys) == [Stored()] * 2
                for outcome in await get(store, keys):
                    assert isinstance(outcome, Hit | Miss)
                assert (await store.usage()).num_bytes >= 0
                most_seen = max(most_seen, num_bytes_on_disk(tmp_path))

        await asyncio.gather(work(0), work(1))
        assert most_seen <= max_bytes * 1.25
    async with open_store(tmp_path, max_bytes=max_bytes) as store:
        assert (await store.usage()).num_bytes == num_bytes_on_disk(tmp_path) <= max_bytes
