"""How many requests there may be, as the store serves or refuses them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagefall_storage.s3_limiter import Answer, Limiter, Ticket


def run(limiter: Limiter, num_requests: int, answer: Answer) -> None:
    """As many as there is room for at once, until that many are answered."""
    while num_requests > 0:
        tickets: list[Ticket] = []
        while limiter.has_room() and len(tickets) < num_requests:
            tickets.append(limiter.begin())
        num_requests -= len(tickets)
        for ticket in tickets:
            limiter.end(ticket, answer)


def test_at_first_there_may_be_as_many_as_there_are_threads() -> None:
    limiter = Limiter(3)
    for _ in range(3):
        assert limiter.has_room()
        limiter.begin()
    assert not limiter.has_room()


def test_a_refusal_halves_the_limit() -> None:
    limiter = Limiter(16)
    run(limiter, 1, "slow_down")
    assert limiter.limit == 8


def test_refusals_of_requests_sent_at_the_same_time_count_once() -> None:
    limiter = Limiter(16)
    tickets = [limiter.begin() for _ in range(16)]
    for ticket in tickets:
        limiter.end(ticket, "slow_down")
    assert limiter.limit == 8


def test_one_request_is_always_possible() -> None:
    limiter = Limiter(16)
    for _ in range(20):
        run(limiter, 1, "slow_down")
    assert limiter.limit == 1
    assert limiter.has_room()


def test_served_requests_raise_the_limit_by_one_for_each_round_and_up_to_the_number_of_threads() -> None:
    limiter = Limiter(16)
    run(limiter, 1, "slow_down")
    run(limiter, 9, "served")
    assert limiter.limit == 9
    run(limiter, 200, "served")
    assert limiter.limit == 16


def test_other_failures_change_nothing() -> None:
    limiter = Limiter(16)
    run(limiter, 1, "slow_down")
    run(limiter, 50, "failed")
    assert limiter.limit == 8


@given(st.integers(1, 40), st.lists(st.sampled_from(["begin", "served", "slow_down", "failed"])))
def test_there_are_never_more_requests_than_threads_and_never_no_room_for_one(
    max_requests: int, steps: list[str]
) -> None:
    limiter = Limiter(max_requests)
    tickets: list[Ticket] = []
    for step in steps:
        if step == "begin":
            if limiter.has_room():
                tickets.append(limiter.begin())
        elif tickets:
            answer: Answer = "served" if step == "served" else "slow_down" if step == "slow_down" else "failed"
            limiter.end(tickets.pop(0), answer)
        assert 1 <= limiter.limit <= max_requests
        assert len(tickets) <= max_requests
        assert tickets or limiter.has_room()
