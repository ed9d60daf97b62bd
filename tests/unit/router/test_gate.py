"""The queue: places, turns and refusals."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.abc
import pytest
from tests.router_rig import until

from pagefall.router.gate import Gate, RefusedError

pytestmark = pytest.mark.anyio


class Rig:
    """Each client that comes in waits until it is released; `order` is that in which they came in."""

    def __init__(self, group: anyio.abc.TaskGroup, *, concurrent: int, queued: int, timeout: float = 60) -> None:
        self.is_open = True
        self.gate = Gate(
            max_concurrent=concurrent, max_queued=queued, timeout_seconds=timeout, is_open=lambda: self.is_open
        )
        self.order: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self._group = group
        self._release: list[anyio.Event] = []

    async def come(self, *names: str) -> None:
        """`a1` is client a's. Returns when each is in, waits or is refused."""
        for name in names:
            known = self._num_known()
            self._group.start_soon(self._visit, name)
            await until(partial(self._knows_more_than, known))

    async def release(self) -> None:
        """Whoever came in first of those still in goes; returns when the next is in."""
        self._release.pop(0).set()
        wanted = min(len(self.order) + 1, len(self.order) + self.gate.num_waiting)
        await until(lambda: len(self.order) >= wanted)

    def _num_known(self) -> int:
        return len(self.order) + self.gate.num_waiting + len(self.refused)

    def _knows_more_than(self, count: int) -> bool:
        return self._num_known() > count

    async def _visit(self, name: str) -> None:
        try:
            async with self.gate.place(name[0]):
                self.order.append(name)
                event = anyio.Event()
                self._release.append(event)
                await event.wait()
        except RefusedError as error:
            self.refused.append((name, error.reason))


async def test_clients_take_turns_and_each_keeps_its_order() -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=1, queued=10)
        await rig.come("a1", "a2", "a3", "a4", "b1", "c1", "b2")
        for _ in range(6):
            await rig.release()
        group.cancel_scope.cancel()
    assert rig.order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_a_full_queue_refuses_whoever_has_most_of_it() -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=1, queued=3)
        await rig.come("a1", "a2", "a3", "a4", "a5", "b1", "b2", "c1")
        await until(lambda: len(rig.refused) == 4)
        group.cancel_scope.cancel()
    assert rig.refused == [("a5", "queue_full"), ("a4", "queue_full"), ("b2", "queue_full"), ("a3", "queue_full")]


async def test_a_gate_without_a_queue_refuses_at_once() -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=1, queued=0)
        await rig.come("a1", "b1")
        group.cancel_scope.cancel()
    assert (rig.order, rig.refused) == (["a1"], [("b1", "queue_full")])


async def test_nobody_comes_in_without_a_worker_and_all_do_with_the_first() -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=5, queued=5)
        rig.is_open = False
        await rig.come("a1", "b1", "c1")
        assert rig.order == []
        rig.is_open = True
        rig.gate.pump()
        await until(lambda: len(rig.order) == 3)
        group.cancel_scope.cancel()


@pytest.mark.parametrize(("is_open", "reason"), [(True, "queue_timeout"), (False, "no_worker")])
async def test_a_wait_that_takes_too_long_says_what_it_waited_for(is_open: bool, reason: str) -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=1, queued=5, timeout=0.02)
        await rig.come("a1")
        rig.is_open = is_open
        await rig.come("b1")
        await until(lambda: bool(rig.refused))
        group.cancel_scope.cancel()
    assert rig.refused == [("b1", reason)]


async def test_places_are_given_back_whatever_happens() -> None:
    gate = Gate(max_concurrent=1, max_queued=5, timeout_seconds=60, is_open=lambda: True)
    with pytest.raises(ZeroDivisionError):
        async with gate.place("a"):
            raise ZeroDivisionError
    for is_let_in_first in (False, True):
        async with anyio.create_task_group() as holders:
            holders.start_soon(_hold, gate)
            await until(lambda: gate.num_inside == 1)
            async with anyio.create_task_group() as waiters:
                waiters.start_soon(_hold, gate)
                await until(lambda: gate.num_waiting == 1)
                if is_let_in_first:
                    holders.cancel_scope.cancel()
                waiters.cancel_scope.cancel()
            holders.cancel_scope.cancel()
        assert (gate.num_inside, gate.num_waiting) == (0, 0)


async def test_a_place_that_was_given_to_someone_who_is_leaving_is_given_on() -> None:
    gate = Gate(max_concurrent=1, max_queued=5, timeout_seconds=60, is_open=lambda: True)
    async with anyio.create_task_group() as group:
        leaving = anyio.CancelScope()

        async def leave() -> None:
            with leaving:
                await _hold(gate)

        gate.num_inside = 1
        group.start_soon(leave)
        await until(lambda: gate.num_waiting == 1)
        gate.num_inside = 0
        gate.pump()  # it is in now, and does not know it yet
        leaving.cancel()
        await until(lambda: gate.num_inside == 0)


async def test_a_closed_gate_refuses_those_who_wait_and_those_who_come() -> None:
    async with anyio.create_task_group() as group:
        rig = Rig(group, concurrent=1, queued=5)
        await rig.come("a1", "b1")
        rig.gate.close()
        await rig.come("c1")
        await until(lambda: len(rig.refused) == 2)
        group.cancel_scope.cancel()
    assert sorted(rig.refused) == [("b1", "shutting_down"), ("c1", "shutting_down")]


async def _hold(gate: Gate) -> None:
    async with gate.place("x"):
        await anyio.sleep_forever()
