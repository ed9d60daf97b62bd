from __future__ import annotations

import pytest
from tests.scheduling_driver import Driver, submit_message

from pagefall.config import SchedulePolicy
from pagefall.scheduling.policy import MAX_OVERTAKES, admission_order, count_overtakes, is_overdue
from pagefall.scheduling.request import Awaited, Prefilling, Request, Waiting


def make_window(*priorities: int) -> list[Waiting]:
    """Requests named by their place in the queue."""
    return [
        Waiting(Request(submit_message(str(place), [1], priority=priority), root=b"", arrival=place, arrived_at=0.0))
        for place, priority in enumerate(priorities)
    ]


def order(window: list[Waiting], policy: SchedulePolicy, cached: dict[str, int]) -> str:
    ordered = admission_order(window, policy, lambda waiting: cached.get(waiting.request.request_id, 0))
    return "".join(waiting.request.request_id for waiting in ordered)


def test_fcfs_keeps_the_order_of_the_queue_and_asks_no_cache() -> None:
    def never(waiting: Waiting) -> int:
        raise AssertionError

    window = make_window(0, 0, 0)
    assert admission_order(window, "fcfs", never) == window


def test_lpm_puts_the_longest_cached_prefix_first_and_equals_by_arrival() -> None:
    assert order(make_window(0, 0, 0, 0), "lpm", {"1": 16, "2": 32, "3": 16}) == "2130"


def test_lpm_never_puts_a_longer_prefix_before_a_higher_priority() -> None:
    assert order(make_window(1, 0, 0), "lpm", {"1": 16, "2": 32}) == "021"


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_overdue_requests_go_first_in_order_of_arrival(policy: SchedulePolicy) -> None:
    window = make_window(0, 0, 0, 0)
    window[1].num_overtakes = MAX_OVERTAKES
    window[3].request.num_preemptions = 1
    assert order(window, policy, {"0": 16, "2": 32, "3": 64}) == ("1302" if policy == "fcfs" else "1320")


def test_an_overtake_counts_for_those_in_front_and_not_for_those_behind() -> None:
    window = make_window(0, 0, 0)
    for _ in range(MAX_OVERTAKES):
        assert not is_overdue(window[0])
        count_overtakes(window, window[1])
    assert is_overdue(window[0])
    assert window[1].num_overtakes == window[2].num_overtakes == 0


def test_standing_aside_for_a_common_head_is_not_being_overtaken() -> None:
    driver = Driver()
    window = make_window(0, 0)
    lease = driver.state.cache.open(b"", window[1].request.token_ids, now=0.0)
    window[0].awaited = Awaited(Prefilling(window[1].request, lease, 0), 4)
    count_overtakes(window, window[1])
    assert window[0].num_overtakes == 0
