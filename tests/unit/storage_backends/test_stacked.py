"""Several stores as one: who is asked, what is promoted, and what one member's failure is to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake_backend import FakeBackend
from tests.unit.storage_backends.stores import get, put, stored_keys, value_of

from pagefall_storage import stacked_fills
from pagefall_storage.errors import StorageError
from pagefall_storage.faulty import BitFlip, Fail, Faulty, Hang
from pagefall_storage.memory import MemoryBackend
from pagefall_storage.protocol import Corrupt, Failed, Hit, Key, Miss, PutItem, Stored
from pagefall_storage.stacked import Stacked
from pagefall_storage.testing import page_keys

pytestmark = pytest.mark.anyio

KEYS: Final = page_keys(4)
FAILED: Final = Failed("error", "injected")


def is_sound(key: Key, value: memoryview) -> Hit | Corrupt:
    return Hit() if value == value_of(key, value.nbytes) else Corrupt("checksum")


class Rig:
    """Two members, of which a test makes what it wants, and the stack of them."""

    def __init__(self) -> None:
        self.near, self.far = Faulty(MemoryBackend()), Faulty(MemoryBackend())
        self.stack = Stacked([self.near, self.far], verify=is_sound)

    @property
    def fills(self) -> stacked_fills.Fills:
        return self.stack._fills

    async def get(self, keys: Sequence[Key], num_bytes: int = 100) -> list[object]:
        outcomes = await get(self.stack, keys, num_bytes)
        await self.fills.wait_until_done()
        return [*outcomes]

    async def put(self, keys: Sequence[Key]) -> list[object]:
        outcomes = await put(self.stack, keys)
        await self.fills.wait_until_done()
        return [*outcomes]


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def leave(store: Faulty, key: Key, value: bytes) -> None:
    """In that member alone, whatever faults it has."""
    await store.inner.delete([key])
    assert await store.inner.put([PutItem(key, memoryview(value))]) == [Stored()]


async def test_what_the_nearest_has_is_read_there_alone(rig: Rig) -> None:
    await rig.put(KEYS[:2])
    assert await rig.stack.contains(KEYS[:2]) == 2
    assert await rig.get(KEYS[:2]) == [Hit(), Hit()]
    assert (rig.far.num_calls["get"], rig.far.num_calls["contains"]) == (0, 0)


async def test_a_value_found_farther_away_is_read_nearer_the_next_time(rig: Rig) -> None:
    await put(rig.far, KEYS[:3])
    await put(rig.near, KEYS[1:2])
    assert await rig.get(KEYS) == [Hit(), Hit(), Hit(), Miss()]
    assert await stored_keys(rig.near) == set(KEYS[:3])
    num_calls = rig.far.num_calls["get"]
    assert await rig.get(KEYS[:3]) == [Hit()] * 3
    assert rig.far.num_calls["get"] == num_calls


async def test_of_three_members_all_that_are_nearer_get_what_the_farthest_has() -> None:
    members = [MemoryBackend() for _ in range(3)]
    stack = Stacked(members)
    await put(members[2], KEYS[:1])
    assert await get(stack, KEYS[:1]) == [Hit()]
    await stack._fills.wait_until_done()
    assert [await stored_keys(member) for member in members] == [set(KEYS[:1])] * 3


async def test_a_value_is_in_every_member_when_put_returns(rig: Rig) -> None:
    assert await put(rig.stack, KEYS) == [Stored()] * 4
    assert await stored_keys(rig.near) == await stored_keys(rig.far) == set(KEYS)


async def test_a_value_that_one_member_takes_is_stored(rig: Rig) -> None:
    rig.near.inject(Fail("full"), on={"put"}, keys=KEYS[:1])
    rig.far.inject(Fail("timeout"), on={"put"}, keys=KEYS[1:3])
    rig.near.inject(Fail("full"), on={"put"}, keys=KEYS[2:3])
    assert await rig.put(KEYS) == [Stored(), Stored(), Failed("full", "injected"), Stored()]


@pytest.mark.parametrize("damaged", [b"short", b"x" * 100])
async def test_a_damaged_value_is_read_from_the_next_member_and_replaced(rig: Rig, damaged: bytes) -> None:
    await rig.put(KEYS[:1])
    await leave(rig.near, KEYS[0], damaged)
    assert await rig.get(KEYS[:1]) == [Hit()]
    assert await get(rig.near, KEYS[:1]) == [Hit()]


async def test_a_damaged_value_is_not_promoted(rig: Rig) -> None:
    await leave(rig.far, KEYS[0], b"x" * 100)
    assert await rig.get(KEYS[:1]) == [Corrupt("checksum")]
    assert await stored_keys(rig.near) == set()


async def test_what_is_damaged_everywhere_is_corrupt_and_can_be_stored_anew(rig: Rig) -> None:
    for member in (rig.near, rig.far):
        await leave(member, KEYS[0], b"x" * 100)
    assert await rig.get(KEYS[:1]) == [Corrupt("checksum")]
    assert await rig.stack.delete(KEYS[:1]) == 1
    assert await rig.get(KEYS[:1]) == [Miss()]
    await rig.put(KEYS[:1])
    assert await rig.get(KEYS[:1]) == [Hit()]


async def test_while_a_member_cannot_answer_its_good_value_is_not_given_up_for_a_damaged_one(rig: Rig) -> None:
    """`Corrupt` would have the caller delete it in both."""
    await rig.put(KEYS[:1])
    await leave(rig.near, KEYS[0], b"x" * 100)
    rig.far.inject(Fail())
    assert await rig.get(KEYS[:1]) == [FAILED]
    assert await stored_keys(rig.near) == set()
    rig.far.heal()
    assert await rig.get(KEYS[:1]) == [Hit()]


async def test_a_member_that_fails_is_as_good_as_an_empty_one(rig: Rig) -> None:
    await rig.put(KEYS[:2])
    rig.near.inject(Fail())
    assert await rig.stack.contains(KEYS) == 2
    assert await rig.get(KEYS) == [Hit(), Hit(), Miss(), Miss()]
    rig.near.heal()
    rig.far.inject(Fail())
    assert await rig.stack.contains(KEYS) == 2
    assert await rig.get(KEYS) == [Hit(), Hit(), Miss(), Miss()]


async def test_where_no_member_can_answer_the_stack_cannot(rig: Rig) -> None:
    rig.near.inject(Fail("timeout"))
    rig.far.inject(Fail())
    assert await rig.get(KEYS[:1]) == [Failed("timeout", "injected")]
    assert await rig.put(KEYS[:1]) == [Failed("timeout", "injected")]
    with pytest.raises(StorageError, match="injected"):
        await rig.stack.contains(KEYS[:1])


async def test_leading_keys_are_counted_across_members(rig: Rig) -> None:
    await put(rig.near, [KEYS[0], KEYS[2]])
    await put(rig.far, [KEYS[1], KEYS[3]])
    assert await rig.stack.contains(KEYS) == 4
    await rig.far.delete(KEYS[3:])
    assert await rig.stack.contains(KEYS) == 3


async def test_delete_is_of_all_members_and_says_when_one_of_them_cannot(rig: Rig) -> None:
    await rig.put(KEYS[:2])
    rig.near.inject(Fail(), on={"delete"})
    with pytest.raises(StorageError, match="injected"):
        await rig.stack.delete(KEYS[:1])
    assert await stored_keys(rig.far) == set(KEYS[1:2])
    rig.near.heal()
    assert await rig.stack.delete(KEYS) == 2
    assert await rig.get(KEYS[:2]) == [Miss(), Miss()]


async def test_a_value_that_is_deleted_while_it_is_promoted_does_not_come_back(rig: Rig) -> None:
    await put(rig.far, KEYS[:1])
    rig.near.inject(Hang(), on={"put"}, times=1)
    assert await get(rig.stack, KEYS[:1]) == [Hit()]
    await asyncio.sleep(0)
    assert await rig.stack.delete(KEYS[:1]) == 1
    rig.near.heal()
    await rig.fills.wait_until_done()
    assert await rig.get(KEYS[:1]) == [Miss()]


async def test_a_value_that_is_read_while_it_is_deleted_is_not_promoted(rig: Rig) -> None:
    """The nearer member has deleted it already, the farther one not yet."""
    await put(rig.far, KEYS[:1])
    rig.far.inject(Hang(), on={"delete"})
    deleting = asyncio.create_task(rig.stack.delete(KEYS[:1]))
    await asyncio.sleep(0.01)
    assert await rig.get(KEYS[:1]) == [Hit()]
    rig.far.heal()
    assert await deleting == 1
    assert await rig.get(KEYS[:1]) == [Miss()]


async def test_a_value_that_was_deleted_since_it_was_read_is_not_promoted() -> None:
    is_read, is_deleted = threading.Event(), threading.Event()

    def verify(key: Key, value: memoryview) -> Hit | Corrupt:
        is_read.set()
        assert is_deleted.wait(timeout=10)
        return is_sound(key, value)

    near, far = MemoryBackend(), MemoryBackend()
    stack = Stacked([near, far], verify=verify)
    await put(far, KEYS[:1])
    getting = asyncio.create_task(get(stack, KEYS[:1]))
    assert await asyncio.to_thread(is_read.wait, 10)
    assert await stack.delete(KEYS[:1]) == 1
    is_deleted.set()
    assert await getting == [Hit()]
    await stack._fills.wait_until_done()
    assert await stored_keys(near) == set()


async def test_a_member_that_does_not_let_go_of_a_value_holds_up_no_deletion_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacked_fills, "_ENDING_SECONDS", 0.01)
    near, far = FakeBackend(), MemoryBackend()
    near.is_stubborn, gate = True, asyncio.Event()
    near.gates["put"] = gate
    stack = Stacked([near, far])
    await put(far, KEYS[:1])
    assert await get(stack, KEYS[:1]) == [Hit()]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        assert await stack.delete(KEYS[:1]) == 1
        await stack.aclose()
    gate.set()
    await stack._fills.wait_until_done()


async def test_what_waits_to_be_promoted_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_fills, "_MAX_WAITING_BYTES", 250)
    await put(rig.far, KEYS)
    assert await rig.get(KEYS) == [Hit()] * 4
    assert await stored_keys(rig.near) == set(KEYS[:2])
    assert await rig.get(KEYS) == [Hit()] * 4
    assert await stored_keys(rig.near) == set(KEYS)


async def test_a_member_gets_what_it_could_not_take_once_it_takes_values_again(rig: Rig) -> None:
    outage = rig.far.inject(Fail("timeout"), on={"put"})
    await rig.put(KEYS[:3])
    assert await stored_keys(rig.far) == set()
    rig.far.remove(outage)
    await rig.put(KEYS[3:])
    assert await stored_keys(rig.far) == set(KEYS)


async def test_what_a_member_has_no_room_for_is_not_offered_again(rig: Rig) -> None:
    rig.near.inject(Fail("full"), on={"put"}, keys=KEYS[:1], times=1)
    await rig.put(KEYS[:1])
    await rig.put(KEYS[1:])
    assert await stored_keys(rig.near) == set(KEYS[1:])


async def test_what_is_refused_again_is_kept_for_later(rig: Rig) -> None:
    refusal = rig.far.inject(Fail(), on={"put"}, keys=KEYS[:1])
    await rig.put(KEYS[:1])
    await rig.put(KEYS[1:2])
    assert await stored_keys(rig.far) == set(KEYS[1:2])
    rig.far.remove(refusal)
    await rig.put(KEYS[2:3])
    assert await stored_keys(rig.far) == set(KEYS[:3])


async def test_what_was_deleted_or_damaged_meanwhile_is_not_given_later(rig: Rig) -> None:
    outage = rig.far.inject(Fail(), on={"put"})
    await rig.put(KEYS[:3])
    rig.far.remove(outage)
    await rig.stack.delete(KEYS[:1])
    rig.near.inject(BitFlip(), keys=KEYS[1:2])
    await rig.put(KEYS[3:])
    assert await stored_keys(rig.far) == set(KEYS[2:])


async def test_of_what_is_kept_for_later_the_oldest_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_fills, "_MAX_OWED", 2)
    outage = rig.far.inject(Fail(), on={"put"})
    await rig.put(KEYS[:3])
    rig.far.remove(outage)
    await rig.put(KEYS[3:])
    assert await stored_keys(rig.far) == set(KEYS[1:])


async def test_a_closed_stack_promotes_nothing_more(rig: Rig) -> None:
    await put(rig.far, KEYS[:1])
    rig.near.inject(Hang(), on={"put"})
    assert await get(rig.stack, KEYS[:1]) == [Hit()]
    await asyncio.sleep(0)
    await rig.stack.aclose()
    assert not rig.fills._tasks


def test_a_stack_needs_a_member() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Stacked([])


ACTIONS: Final = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "delete", "damage", "outage", "recovery", "settle"]),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_whatever_happens_to_its_members_a_hit_is_right_and_what_was_deleted_stays_away(
    actions: list[tuple[str, int, int]],
) -> None:
    async def run() -> None:
        members = [Faulty(MemoryBackend()) for _ in range(3)]
        stack = Stacked(members, verify=is_sound)
        is_absent = dict.fromkeys(KEYS, True)
        for action, which, index in actions:
            key, member = KEYS[which], members[index]
            match action:
                case "put":
                    await put(stack, [key])
                    is_absent[key] = False
                case "get":
                    [outcome] = await get(stack, [key])  # checks its content
                    assert not (is_absent[key] and isinstance(outcome, Hit | Corrupt))
                case "delete":
                    try:
                        await stack.delete([key])
                        is_absent[key] = True
                    except StorageError:
                        pass
                case "damage" if not is_absent[key]:
                    await leave(member, key, b"x" * 100)
                case "outage":
                    member.inject(Fail())
                case "recovery":
                    member.heal()
                case "settle":
                    await stack._fills.wait_until_done()
        await stack.aclose()

    asyncio.run(run())
