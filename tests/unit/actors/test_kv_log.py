"""What enters and leaves the tiers, numbered and remembered for a while."""

from __future__ import annotations

import asyncio
import hashlib

from pagefall.actors.kv_log import KvEventLog
from pagefall.cache.changes import TierChange
from pagefall.kv_events import Cleared, Entered, Left, decode_line, names_as_ints


def keys(*numbers: int) -> bytes:
    return b"".join(hashlib.sha256(bytes([number])).digest() for number in numbers)


def names(*numbers: int) -> bytes:
    return b"".join(hashlib.sha256(bytes([number])).digest()[:8] for number in numbers)


def test_changes_become_numbered_events_without_gaps() -> None:
    log = KvEventLog(namespace=b"n", page_size=16)
    log.publish([TierChange("device", keys(1, 2)), TierChange("host", keys(1))])
    log.publish([TierChange("device", keys(2), "pool_full", is_gone=True), TierChange("storage", b"", "flushed")])
    lines = log.since(0)
    assert lines is not None
    assert [decode_line(line) for line in lines] == [
        Entered(number=1, tier="device", names=names(1, 2)),
        Entered(number=2, tier="host", names=names(1)),
        Left(number=3, tier="device", names=names(2)),
        Cleared(number=4, tier="storage"),
    ]
    assert log.since(4) == []
    assert len(log.since(3) or []) == 1
    assert log.since(5) is None


def test_names_are_the_beginnings_of_keys() -> None:
    [one, two] = names_as_ints(names(1, 2))
    assert one == int.from_bytes(keys(1)[:8], "little")
    assert two == int.from_bytes(keys(2)[:8], "little")


def test_what_is_forgotten_is_known_to_be() -> None:
    log = KvEventLog(namespace=b"n", page_size=16, max_bytes=1000)
    for number in range(100):
        log.publish([TierChange("device", keys(number))])
    assert log.since(0) is None
    assert log.since(50) is None
    assert len(log.since(98) or []) == 2
    assert sum(map(len, log._lines)) <= 1000


async def test_a_reader_waits_for_news_and_no_longer_than_it_wants() -> None:
    log = KvEventLog(namespace=b"n", page_size=16)
    await log.wait(0, seconds=0.001)
    waiting = asyncio.create_task(log.wait(0, seconds=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.publish([TierChange("device", keys(1))])
    async with asyncio.timeout(5):
        await waiting
        await log.wait(0, seconds=60)  # there is something already


async def test_nothing_published_is_no_news() -> None:
    log = KvEventLog(namespace=b"n", page_size=16)
    waiting = asyncio.create_task(log.wait(0, seconds=0.01))
    log.publish([])
    await waiting
    assert log.number == 0
