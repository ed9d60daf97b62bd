"""Cancelling an operation waits for its threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from pagefall_storage.errors import StorageError
from pagefall_storage.file_threads import FileThreads
from pagefall_storage.operations import Stop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def threads() -> AsyncIterator[FileThreads]:
    threads = FileThreads(2)
    yield threads
    await threads.aclose()


class Gate:
    """A job that says when it has begun and ends when it may."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.done: list[int] = []

    def pass_through(self, item: int) -> int:
        self.has_begun.set()
        assert self.may_end.wait(10)
        self.done.append(item)
        return item


async def test_spread_keeps_the_order_of_its_items(threads: FileThreads) -> None:
    async def operation(stop: Stop) -> list[int | None]:
        return await threads.spread(lambda item: item * item, range(100), stop)

    assert await threads.operate(operation) == [i * i for i in range(100)]


async def test_after_a_stop_no_further_item_is_begun(threads: FileThreads) -> None:
    async def operation(stop: Stop) -> list[int | None]:
        def work(item: int) -> int:
            if item == 0:
                stop.set()
            return item

        return await threads.spread(work, range(0, 200, 2), stop)

    results = await threads.operate(operation)
    assert results[0] == 0
    assert None in results


@pytest.mark.parametrize("num_cancellations", [1, 3])
async def test_cancelling_stops_and_returns_when_no_thread_works_any_more(
    threads: FileThreads, num_cancellations: int
) -> None:
    gate = Gate()

    async def operation(stop: Stop) -> list[int | None]:
        return await threads.spread(gate.pass_through, range(100), stop)

    task = asyncio.create_task(threads.operate(operation))
    await asyncio.to_thread(gate.has_begun.wait, 10)
    for _ in range(num_cancellations):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    gate.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    num_done = len(gate.done)
    assert num_done <= 2  # what each thread was at
    await asyncio.sleep(0.02)
    assert len(gate.done) == num_done


async def test_a_cancel_scope_of_anyio_does_the_same(threads: FileThreads) -> None:
    gate = Gate()

    async def operation(stop: Stop) -> list[int | None]:
        return await threads.spread(gate.pass_through, range(100), stop)

    loop = asyncio.get_running_loop()
    with anyio.move_on_after(0.02) as scope:
        loop.call_later(0.06, gate.may_end.set)
        await threads.operate(operation)
    assert scope.cancelled_caught
    assert len(gate.done) == 2


async def test_a_bug_is_raised_even_from_a_cancelled_operation(threads: FileThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        await _cancel_an_operation_that_raises(threads, ZeroDivisionError("a bug"))


async def test_a_store_that_cannot_say_does_not_keep_an_operation_from_being_cancelled(threads: FileThreads) -> None:
    with pytest.raises(asyncio.CancelledError):
        await _cancel_an_operation_that_raises(threads, StorageError("no answer"))


async def test_closing_stops_what_is_under_way_and_may_be_repeated() -> None:
    threads, gate = FileThreads(1), Gate()

    async def operation(stop: Stop) -> list[int | None]:
        return await threads.spread(gate.pass_through, range(100), stop)

    task = asyncio.create_task(threads.operate(operation))
    await asyncio.to_thread(gate.has_begun.wait, 10)
    asyncio.get_running_loop().call_later(0.01, gate.may_end.set)
    await threads.aclose()
    assert await task == [0] + [None] * 99
    await threads.aclose()


async def _cancel_an_operation_that_raises(threads: FileThreads, error: Exception) -> None:
    gate = Gate()

    async def operation(stop: Stop) -> None:
        await threads.run(partial(gate.pass_through, 0))
        raise error

    task = asyncio.create_task(threads.operate(operation))
    await asyncio.to_thread(gate.has_begun.wait, 10)
    task.cancel()
    gate.may_end.set()
    await task
