from __future__ import annotations

import pytest

from pagefall.router.breaker import WorkerBreaker


@pytest.fixture
def breaker() -> WorkerBreaker:
    return WorkerBreaker(num_failures_to_open=2, open_seconds=1.0)


def fail(breaker: WorkerBreaker, now: float) -> bool:
    return breaker.failed(breaker.begin(now), now)


def open_it(breaker: WorkerBreaker, now: float) -> None:
    while breaker.state == "closed":
        fail(breaker, now)


def test_failures_in_a_row_open_it(breaker: WorkerBreaker) -> None:
    assert not fail(breaker, 0)
    assert breaker.allows(0)
    assert fail(breaker, 0)
    assert (breaker.state, breaker.allows(0.99), breaker.num_openings) == ("open", False, 1)


def test_an_answer_between_failures_keeps_it_closed(breaker: WorkerBreaker) -> None:
    for _ in range(5):
        fail(breaker, 0)
        breaker.succeeded(breaker.begin(0))
    assert breaker.state == "closed"


def test_after_its_time_one_request_is_the_trial_and_its_answer_closes_it(breaker: WorkerBreaker) -> None:
    open_it(breaker, 0)
    assert breaker.allows(1)
    trial = breaker.begin(1)
    assert (breaker.state, breaker.allows(1)) == ("half_open", False)
    breaker.succeeded(trial)
    assert (breaker.state, breaker.allows(1)) == ("closed", True)


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_minute(breaker: WorkerBreaker) -> None:
    open_it(breaker, 0)
    now, waits = 0.0, []
    for _ in range(9):
        wait = next(seconds for seconds in range(1, 100) if breaker.allows(now + seconds))
        waits.append(wait)
        now += wait
        assert fail(breaker, now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_trial_whose_client_left_lets_the_next_one_try(breaker: WorkerBreaker) -> None:
    open_it(breaker, 0)
    breaker.withdrawn(breaker.begin(1))
    assert breaker.allows(1)


def test_what_began_before_a_change_says_nothing_after_it(breaker: WorkerBreaker) -> None:
    early = breaker.begin(0)
    open_it(breaker, 0)
    breaker.succeeded(early)
    assert not breaker.allows(0)
    trial = breaker.begin(1)
    assert not breaker.failed(early, 1)
    breaker.succeeded(trial)
    assert breaker.state == "closed"


def test_a_request_sent_though_it_is_open_closes_it_when_it_is_answered(breaker: WorkerBreaker) -> None:
    open_it(breaker, 0)
    breaker.succeeded(breaker.begin(0.5))
    assert breaker.state == "closed"
