"""A member of a stack behind its own deadline and breaker: it always answers, and holds up the others once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

import pytest
from tests.fake_backend import FakeBackend
from tests.filled_store import NAMESPACE, page
from tests.unit.storage_backends.stores import get, put, stored_keys

from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.guarded_member import GuardedMember
from pagefall.tiers.guarded_stack import guarded_stack
from pagefall.tiers.guarded_store import GuardedStore
from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import Failed, Hit, Miss, PutItem, Stored
from pagefall_storage.stacked import Stacked
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

KEYS: Final = page_keys(3)
DEADLINE_SECONDS: Final = 0.05
NO_ANSWER: Final = Failed("timeout", "no answer in time")
LEFT_ALONE: Final = Failed("error", "left alone for a while")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    backend = FakeBackend()
    yield backend
    for gate in backend.gates.values():
        gate.set()


@pytest.fixture
def member(backend: FakeBackend, clock: Clock) -> GuardedMember:
    breaker = CircuitBreaker(open_seconds=10.0, random=lambda: 1.0)
    return GuardedMember(
        GuardedStore(backend, breaker, deadline_seconds=DEADLINE_SECONDS, value_bytes=100, clock=clock)
    )


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_member_that_is_well_is_itself(member: GuardedMember) -> None:
    assert await put(member, KEYS[:2]) == [Stored(), Stored()]
    assert await member.contains(KEYS) == 2
    assert await get(member, KEYS) == [Hit(), Hit(), Miss()]
    assert await stored_keys(member) == set(KEYS[:2])
    assert (await member.usage()).num_values == 2
    assert await member.delete(KEYS) == 2


async def test_a_silent_member_has_failed_after_its_deadline_and_is_then_left_alone(
    backend: FakeBackend, member: GuardedMember, clock: Clock
) -> None:
    await put(member, KEYS[:1])
    gate = backend.gates["get"] = asyncio.Event()
    assert await get(member, KEYS[:1]) == [NO_ANSWER]
    num_calls = len(backend.calls)
    assert await get(member, KEYS[:1]) == [LEFT_ALONE]
    assert await put(member, KEYS[:1]) == [LEFT_ALONE]
    for refused in (member.contains(KEYS), member.delete(KEYS)):
        with pytest.raises(StorageError, match="left alone"):
            await refused
    assert len(backend.calls) == num_calls

    gate.set()
    clock.now = 20.0
    assert await get(member, KEYS[:1]) == [LEFT_ALONE]  # that was the probe's turn
    await settle()
    assert await get(member, KEYS[:1]) == [Hit()]


async def test_a_member_that_raises_or_lies_has_failed(backend: FakeBackend, member: GuardedMember) -> None:
    backend.errors["get"] = RuntimeError("a bug")
    assert await get(member, KEYS[:1]) == [Failed("error", "it failed")]
    backend.errors["contains"] = StorageError("down")
    with pytest.raises(StorageError):
        await member.contains(KEYS)


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_cancelled_get_returns_once_the_member_uses_its_buffers_no_more(
    backend: FakeBackend, member: GuardedMember, is_stubborn: bool
) -> None:
    gate = backend.gates["get"] = asyncio.Event()
    backend.is_stubborn = is_stubborn
    getting = asyncio.create_task(get(member, KEYS[:1]))
    await settle()
    for _ in range(2):
        getting.cancel()
        await settle()
        assert getting.done() != is_stubborn
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await getting


async def test_a_get_that_was_given_up_returns_once_the_member_uses_its_buffers_no_more(
    backend: FakeBackend, member: GuardedMember
) -> None:
    gate = backend.gates["get"] = asyncio.Event()
    backend.is_stubborn = True
    getting = asyncio.create_task(get(member, KEYS[:1]))
    await asyncio.sleep(3 * DEADLINE_SECONDS)
    assert not getting.done()
    gate.set()
    assert await getting == [NO_ANSWER]


async def test_empty_batches_ask_nothing(backend: FakeBackend, member: GuardedMember) -> None:
    assert (await member.get([], []), await member.put([])) == ([], [])
    assert (await member.contains([]), await member.delete([])) == (0, 0)
    assert backend.calls == []


def stack_of(*members: FakeBackend, clock: Clock) -> Stacked:
    return guarded_stack(members, deadline_seconds=2 * DEADLINE_SECONDS, value_bytes=100, clock=clock)


async def test_beside_a_silent_member_the_others_are_read_and_written(
    backend: FakeBackend, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    far = FakeBackend()
    stack = stack_of(backend, far, clock=clock)
    await put(stack, KEYS[:1])
    for operation in ("contains", "get", "put", "delete"):
        backend.gates[operation] = asyncio.Event()
    with caplog.at_level(logging.WARNING, "pagefall.storage"):
        assert await stack.contains(KEYS) == 1
    assert [record.message for record in caplog.records] == [
        f"the store is left alone for a while, a fake store: no answer within {DEADLINE_SECONDS:g} s"
    ]
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await stack.contains(KEYS) == 1
        assert await get(stack, KEYS[:2]) == [Hit(), Miss()]
        assert await put(stack, KEYS[1:2]) == [Stored()]
    assert set(far.values) == set(KEYS[:2])
    await stack.aclose()
    assert (backend.is_closed, far.is_closed) == (True, True)


async def test_pages_are_verified_before_they_are_believed_and_promoted(backend: FakeBackend, clock: Clock) -> None:
    (key, value), far = page(NAMESPACE, 1), FakeBackend()
    backend.values[key] = value[:-1] + b"\xff"
    far.values[key] = value
    stack = stack_of(backend, far, clock=clock)
    buffer = bytearray(len(value))
    assert await stack.get([key], [memoryview(buffer)]) == [Hit()]
    assert buffer == value
    await stack._fills.wait_until_done()
    assert backend.values[key] == value
    assert await stack.put([PutItem(key, memoryview(value))]) == [Stored()]
