from __future__ import annotations

from tests.scheduling_driver import submit_message

from pagefall.messages import RequestId
from pagefall.scheduling.queue import WaitingQueue
from pagefall.scheduling.request import Request, Waiting


def waiting(name: str, priority: int = 0) -> Waiting:
    return Waiting(Request(submit_message(name, [1], priority=priority), root=b"", arrival=0, arrived_at=0.0))


def names(queue: WaitingQueue, count: int = 100) -> list[str]:
    return [waiting.request.request_id for waiting in queue.first(count)]


def test_higher_priorities_come_first_and_equals_in_order_of_arrival() -> None:
    queue = WaitingQueue()
    for name, priority in [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)]:
        queue.push(waiting(name, priority))
    assert names(queue) == ["b", "d", "a", "e", "c"]
    assert names(queue, 3) == ["b", "d", "a"]
    assert len(queue) == 5


def test_pushed_to_the_front_means_before_its_own_priority_only() -> None:
    queue = WaitingQueue()
    queue.push(waiting("high", 1))
    queue.push(waiting("low"))
    queue.push_front(waiting("again"))
    assert names(queue) == ["high", "again", "low"]


def test_a_removed_request_is_gone_and_its_place_closes() -> None:
    queue = WaitingQueue()
    for name in "abc":
        queue.push(waiting(name, ord(name)))
    removed = queue.remove(RequestId("b"))
    assert removed is not None
    assert removed.request.request_id == "b"
    assert queue.remove(RequestId("b")) is None
    assert names(queue) == ["c", "a"]
    queue.push(waiting("b", ord("b")))
    assert names(queue) == ["c", "b", "a"]
