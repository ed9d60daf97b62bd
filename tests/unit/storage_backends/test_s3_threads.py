"""Requests of several operations on a few threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from pagefall_storage.operations import Stop
from pagefall_storage.s3_errors import RequestFailed
from pagefall_storage.s3_threads import STOPPED, RequestThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
async def threads() -> AsyncIterator[RequestThreads]:
    threads = RequestThreads(2)
    yield threads
    await threads.aclose()


class Gate:
    """Requests that begin and then wait until they may end."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def request(self, item: int) -> int:
        self.begun.release()
        assert self.may_end.wait(10)
        return item

    async def until_begun(self, num_requests: int) -> None:
        for _ in range(num_requests):
            assert await asyncio.to_thread(self.begun.acquire, timeout=10)


async def test_results_are_in_the_order_of_the_items(threads: RequestThreads) -> None:
    assert await threads.spread(lambda item: item * item, range(100), Stop()) == [i * i for i in range(100)]


async def test_a_request_that_fails_is_a_result_among_the_others(threads: RequestThreads) -> None:
    failed = RequestFailed("error", "no")

    def request(item: int) -> int:
        if item == 1:
            raise failed
        return item

    assert await threads.spread(request, range(3), Stop()) == [0, failed, 2]


async def test_a_bug_is_raised_once_all_are_done(threads: RequestThreads) -> None:
    done = []

    def request(item: int) -> None:
        done.append(item)
        if item == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await threads.spread(request, range(10), Stop())
    assert len(done) == 10
    assert await threads.spread(lambda item: item, range(3), Stop()) == [0, 1, 2]


async def test_operations_take_turns(threads: RequestThreads) -> None:
    order: list[str] = []
    gate = Gate()
    holding = asyncio.create_task(threads.spread(gate.request, range(2), Stop()))
    await gate.until_begun(2)
    many = asyncio.create_task(threads.spread(lambda _: order.append("many"), range(20), Stop()))
    await asyncio.sleep(0)
    one = asyncio.create_task(threads.spread(lambda _: order.append("one"), range(1), Stop()))
    await asyncio.sleep(0)
    gate.may_end.set()
    await asyncio.gather(holding, many, one)
    assert order.index("one") <= 3


async def test_once_the_store_serves_again_more_threads_join_in() -> None:
    threads = RequestThreads(8)
    lock, num_at_once, max_at_once = threading.Lock(), 0, 0

    def refused(_: int) -> int:
        raise RequestFailed("error", "no", is_slow_down=True)

    def served(_: int) -> None:
        nonlocal num_at_once, max_at_once
        with lock:
            num_at_once += 1
            max_at_once = max(max_at_once, num_at_once)
        time.sleep(0.005)
        with lock:
            num_at_once -= 1

    await threads.spread(refused, range(1), Stop())
    await threads.spread(served, range(4), Stop())
    assert max_at_once <= 4
    await threads.spread(served, range(100), Stop())
    assert max_at_once > 5
    await threads.aclose()


async def test_a_stopped_operation_leaves_requests_under_way_but_waits_for_those_with_the_callers_memory(
    threads: RequestThreads,
) -> None:
    gate, stop = Gate(), Stop()
    task = asyncio.create_task(threads.spread(gate.request, range(10), stop, recall=lambda item: item == 1))
    await gate.until_begun(2)
    stop.set()
    await asyncio.sleep(0.02)
    assert not task.done()
    gate.may_end.set()
    results = await task
    assert results[1] == 1
    assert results[2:] == [STOPPED] * 8


async def test_a_stopped_operation_that_lends_nothing_returns_at_once(threads: RequestThreads) -> None:
    gate, stop = Gate(), Stop()
    task = asyncio.create_task(threads.spread(gate.request, range(10), stop))
    await gate.until_begun(2)
    stop.set()
    assert await task == [STOPPED] * 10
    gate.may_end.set()


async def test_a_stopped_operation_that_settles_waits_for_what_is_under_way(threads: RequestThreads) -> None:
    gate, stop = Gate(), Stop()
    task = asyncio.create_task(threads.spread(gate.request, range(10), stop, settle_seconds=10))
    await gate.until_begun(2)
    stop.set()
    await asyncio.sleep(0.02)
    gate.may_end.set()
    assert await task == [0, 1] + [STOPPED] * 8


async def test_an_operation_stopped_before_it_began_asks_for_nothing(threads: RequestThreads) -> None:
    stop = Stop()
    stop.set()
    assert await threads.spread(lambda _: pytest.fail("asked"), range(2), stop) == [STOPPED] * 2
