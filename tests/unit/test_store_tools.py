"""A store is told, checked and cleared by its names, headers and manifests alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from tests.filled_store import NAMESPACE, PAGE_BYTES, fill, namespace, page, put

from pagefall.store_tools import (
    Contents,
    Copied,
    Verified,
    copy_values,
    delete_values,
    list_contents,
    namespace_stats,
    read_manifest,
    verify_values,
)
from pagefall.tiers.manifest import encode_manifest, manifest_key
from pagefall_storage.faulty import Fail, Faulty
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Failed, GetOutcome, Key, Miss, StorageBackend, StoredValue

pytestmark = pytest.mark.anyio

OTHER = namespace(page_size=32)
NAME, OTHER_NAME = NAMESPACE.digest().hex()[:16], OTHER.digest().hex()[:16]


class TimedBackend(MemoryBackend):
    """Knows when values were used, loses or refuses to read some, and remembers what was read in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.last_used: dict[str, float] = {}
        self.outcomes: dict[str, GetOutcome] = {}
        self.read: list[str] = []

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        self.read += keys
        outcomes = await super().get(keys, into)
        return [self.outcomes.get(key, outcome) for key, outcome in zip(keys, outcomes, strict=True)]

    async def scan(self) -> AsyncIterator[StoredValue]:
        async for value in super().scan():
            yield StoredValue(value.key, value.num_bytes, self.last_used.get(value.key))


@pytest.fixture
def backend() -> TimedBackend:
    return TimedBackend()


async def verified(backend: MemoryBackend, *, delete: bool = False) -> Verified:
    values = all_of(await list_contents(backend))
    done: list[int] = []
    result = await verify_values(backend, values, delete=delete, advance=done.append)
    assert sum(done) == len(values)
    return result


def all_of(contents: Contents) -> list[StoredValue]:
    return [value for values in contents.by_namespace.values() for value in values]


async def test_an_empty_store_has_nothing_to_tell(backend: TimedBackend) -> None:
    contents = await list_contents(backend)
    assert contents == Contents({})
    assert await namespace_stats(backend, contents) == []
    assert (await verified(backend)).is_clean


async def test_each_namespace_is_told_with_what_it_stands_for(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 3)
    await fill(backend, OTHER, 2)
    await backend.delete([manifest_key(OTHER.digest())])
    await put(backend, ("somebody/elses", b"value"), (f"{NAME}/short", b"value"))
    backend.last_used = {keys[0]: 20.0, keys[1]: 10.0, manifest_key(NAMESPACE.digest()): 1.0}

    contents = await list_contents(backend)
    assert contents.num_foreign == 2
    by_name = {stats.name: stats for stats in await namespace_stats(backend, contents)}
    assert list(by_name) == sorted([NAME, OTHER_NAME])
    told, untold = by_name[NAME], by_name[OTHER_NAME]
    assert (told.manifest, told.num_pages, told.oldest_use, told.newest_use) == (NAMESPACE, 3, 10.0, 20.0)
    assert told.num_bytes == 3 * (HEADER_BYTES + PAGE_BYTES) + len(encode_manifest(NAMESPACE)[1])
    assert (untold.manifest, untold.num_pages, untold.oldest_use) == (None, 2, None)


async def test_a_damaged_manifest_tells_nothing(backend: TimedBackend) -> None:
    key, value = encode_manifest(NAMESPACE)
    await put(backend, (key, value[:-1] + b" "))
    assert await read_manifest(backend, all_of(await list_contents(backend))) is None


async def test_sound_values_are_sound(backend: TimedBackend) -> None:
    await fill(backend, NAMESPACE, 200)
    await fill(backend, OTHER, 1)
    assert await verified(backend) == Verified(num_sound=203, num_bad={}, num_unread={}, num_deleted=0)


async def test_every_kind_of_damage_is_counted_by_its_reason_and_only_deleted_on_demand(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 7)
    values = [bytearray(page(NAMESPACE, index)[1]) for index in range(7)]
    values[0][HEADER_BYTES + 5] ^= 1
    values[1][20] ^= 1
    values[2] = values[2][:50]
    values[3] = values[4]
    values[4] = bytearray(page(OTHER, 4)[1])
    values[5] += b"more"
    await put(backend, *((key, bytes(value)) for key, value in zip(keys, values, strict=True)))
    await put(backend, (manifest_key(NAMESPACE.digest()), encode_manifest(OTHER)[1]))
    bad = {
        "checksum": 1,
        "damaged header": 1,
        "short": 1,
        "other key": 1,
        "other namespace": 2,
        "length": 1,
    }

    found = await verified(backend)
    assert found == Verified(num_sound=1, num_bad=bad, num_unread={}, num_deleted=0)
    assert not found.is_clean
    assert await verified(backend, delete=True) == Verified(num_sound=1, num_bad=bad, num_unread={}, num_deleted=7)
    assert await verified(backend) == Verified(num_sound=1, num_bad={}, num_unread={}, num_deleted=0)


async def test_what_cannot_be_read_is_not_deleted_and_what_is_gone_is_not_missed(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 3)
    backend.outcomes = {keys[0]: Failed("timeout", "too slow"), keys[1]: Miss()}
    found = await verified(backend, delete=True)
    assert found == Verified(num_sound=2, num_bad={}, num_unread={"timeout": 1}, num_deleted=0)
    assert not found.is_clean
    assert (await backend.usage()).num_values == 4


async def test_the_values_used_longest_ago_are_read_first(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 100)
    backend.last_used = {key: float(-index % 7 * 1000 + index) for index, key in enumerate(keys)}
    await verified(backend)
    assert backend.read[1:] == sorted(keys, key=lambda key: backend.last_used[key])


async def test_deleting_leaves_the_others(backend: TimedBackend) -> None:
    await fill(backend, NAMESPACE, 150)
    await fill(backend, OTHER, 2)
    done: list[int] = []
    contents = await list_contents(backend)
    assert await delete_values(backend, contents.by_namespace[NAME], advance=done.append) == 151
    assert sum(done) == 151
    assert list((await list_contents(backend)).by_namespace) == [OTHER_NAME]


async def copied(source: StorageBackend, target: StorageBackend) -> Copied:
    values = all_of(await list_contents(source))
    done: list[int] = []
    result = await copy_values(source, target, values, advance=done.append)
    assert result.stopped is not None or sum(done) == len(values)
    return result


async def test_a_copy_has_every_value_and_is_whole(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 150)
    await fill(backend, OTHER, 2)
    await put(backend, ("somebody/elses", b"value"))
    target = MemoryBackend()
    result = await copied(backend, target)
    num_bytes = sum(value.num_bytes for value in all_of(await list_contents(backend)))
    assert result == Copied(num_copied=154, num_bytes=num_bytes)
    assert result.is_complete
    assert await target.contains(keys) == 150
    assert await verified(target) == Verified(num_sound=154, num_bad={}, num_unread={}, num_deleted=0)


async def test_what_is_there_is_not_copied_again(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 10)
    target = MemoryBackend()
    await copied(backend, target)
    await target.delete(keys[:3])
    await put(target, (keys[3], b"of another length"))
    backend.read.clear()
    result = await copied(backend, target)
    assert (result.num_copied, result.num_present) == (4, 7)
    assert sorted(backend.read) == sorted(keys[:4])
    assert (await copied(backend, target)).num_present == 11


async def test_what_is_damaged_or_cannot_be_read_or_written_is_counted_and_left_out(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 5)
    value = bytearray(page(NAMESPACE, 0)[1])
    value[-1] ^= 1
    await put(backend, (keys[0], bytes(value)))
    backend.outcomes = {keys[1]: Failed("timeout", "too slow"), keys[2]: Miss()}
    target = Faulty(MemoryBackend())
    target.inject(Fail("full"), on={"put"}, keys={keys[3]})
    result = await copied(backend, target)
    assert (result.num_copied, dict(result.num_bad), dict(result.num_unread), dict(result.num_unwritten)) == (
        2,
        {"checksum": 1},
        {"timeout": 1},
        {"full": 1},
    )
    assert not result.is_complete
    assert result.stopped is None
    assert sorted(value.key for value in all_of(await list_contents(target))) == sorted(
        [keys[4], manifest_key(NAMESPACE.digest())]
    )


async def test_the_values_used_longest_ago_are_copied_first(backend: TimedBackend) -> None:
    keys = await fill(backend, NAMESPACE, 100)
    backend.last_used = {key: float(-index % 7 * 1000 + index) for index, key in enumerate(keys)}
    await copied(backend, MemoryBackend())
    assert backend.read[1:] == sorted(keys, key=lambda key: backend.last_used[key])


async def test_a_store_that_fails_altogether_stops_the_copy_which_goes_on_later(backend: TimedBackend) -> None:
    await fill(backend, NAMESPACE, 1000)
    target = Faulty(MemoryBackend())
    target.inject(Fail(reason="no route"), on={"put"})
    result = await copied(backend, target)
    assert result.stopped == f"cannot write to {target.description}: no route"
    assert 0 < sum(result.num_unwritten.values()) < 1000
    target.heal()
    source = Faulty(backend)
    source.inject(Fail(reason="gone"), on={"get"})
    assert (await copied(source, target)).stopped == f"cannot read from {source.description}: gone"
    source.heal()
    assert (await copied(source, target)).is_complete
    assert (await target.usage()).num_values == 1001
