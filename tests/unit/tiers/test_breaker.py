from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefall.tiers.breaker import CircuitBreaker, FailureKind, Operation, Permit


def breaker(*, random: float = 1.0) -> CircuitBreaker:
    """Opens for 1, 2, 4, 8, 8, ... seconds."""
    return CircuitBreaker(num_errors_to_open=3, open_seconds=1.0, max_open_seconds=8.0, random=lambda: random)


def begun(tested: CircuitBreaker, now: float, operation: Operation = "read") -> Permit:
    permit = tested.begin(now, operation)
    assert permit is not None
    return permit


def opened(at: float = 0.0) -> CircuitBreaker:
    tested = breaker()
    tested.failed(begun(tested, at), "timeout", at)
    return tested


def next_probe(tested: CircuitBreaker, now: float) -> tuple[float, Permit]:
    """Seconds to the next probe, which is begun."""
    for quarters in range(1000):
        permit = tested.begin(now + quarters / 4, "read")
        if permit is not None:
            assert permit.is_probe
            return quarters / 4, permit
    raise AssertionError("it never lets a probe through")


def test_one_timeout_opens_it() -> None:
    tested = breaker()
    assert tested.failed(begun(tested, 0.0), "timeout", 0.0)
    assert tested.state == "open"
    assert tested.begin(0.9, "read") is None


def test_errors_open_it_only_in_a_row() -> None:
    tested = breaker()
    for _ in range(5):
        assert not tested.failed(begun(tested, 0.0), "error", 0.0)
        assert not tested.failed(begun(tested, 0.0), "error", 0.0)
        assert not tested.succeeded(begun(tested, 0.0))
    assert [tested.failed(begun(tested, 0.0), "error", 0.0) for _ in range(3)] == [False, False, True]
    assert tested.begin(0.0, "read") is None


def test_lookups_that_succeed_do_not_hide_reads_that_fail() -> None:
    tested = breaker()
    opened = []
    for _ in range(3):
        assert not tested.succeeded(begun(tested, 0.0, "lookup"))
        opened.append(tested.failed(begun(tested, 0.0, "read"), "error", 0.0))
    assert opened == [False, False, True]


def test_neither_do_they_make_the_next_time_short_again() -> None:
    tested, now, waits = breaker(), 0.0, []
    for _ in range(3):
        for _ in range(3):
            tested.succeeded(begun(tested, now, "lookup"))
            tested.failed(begun(tested, now, "read"), "error", now)
        seconds, probe = next_probe(tested, now)
        waits.append(seconds)
        now += 100.0
        assert tested.succeeded(probe), "which read something that is not there"
    assert waits == [1, 2, 4]


def test_a_store_that_takes_nothing_may_still_give_what_it_has() -> None:
    tested = breaker()
    for _ in range(10):
        assert not tested.failed(begun(tested, 0.0, "write"), "error", 0.0)
    assert tested.failed(begun(tested, 0.0, "write"), "timeout", 0.0), "one that does not answer is another matter"


def test_one_probe_goes_through_when_its_time_is_over() -> None:
    tested = opened()
    assert begun(tested, 1.0).is_probe
    assert tested.state == "half_open"
    assert tested.begin(100.0, "read") is None


def test_a_probe_that_succeeds_closes_it() -> None:
    tested = opened()
    assert tested.succeeded(begun(tested, 1.0))
    assert tested.state == "closed"
    assert not begun(tested, 1.0).is_probe


@pytest.mark.parametrize("kind", ["timeout", "error"])
def test_each_probe_that_fails_doubles_the_time_to_the_next_up_to_a_limit(kind: FailureKind) -> None:
    tested, now, waits = opened(), 0.0, []
    for _ in range(6):
        seconds, probe = next_probe(tested, now)
        waits.append(seconds)
        now += 100.0
        assert not tested.failed(probe, kind, now), "only the first opening is news"
    assert waits == [1, 2, 4, 8, 8, 8]


def test_only_a_success_while_closed_makes_the_next_time_short_again() -> None:
    tested = opened()
    tested.succeeded(begun(tested, 10.0))
    tested.failed(begun(tested, 10.0), "timeout", 10.0)
    seconds, probe = next_probe(tested, 10.0)
    assert seconds == 2.0
    tested.succeeded(probe)
    tested.succeeded(begun(tested, 20.0))
    tested.failed(begun(tested, 20.0), "timeout", 20.0)
    assert next_probe(tested, 20.0)[0] == 1.0


@pytest.mark.parametrize(("random", "seconds"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_the_time_is_spread_at_random(random: float, seconds: float) -> None:
    tested = breaker(random=random)
    tested.failed(begun(tested, 0.0), "timeout", 0.0)
    assert next_probe(tested, 0.0)[0] == seconds


def test_operations_from_before_a_change_say_nothing_after_it() -> None:
    tested = breaker()
    early = [begun(tested, 0.0) for _ in range(3)]
    tested.failed(early[0], "timeout", 0.0)
    assert not tested.failed(early[1], "timeout", 0.5), "it is open already, and not for longer"
    assert not tested.succeeded(early[2])
    assert tested.begin(0.9, "read") is None
    probe = begun(tested, 1.0)
    assert not tested.succeeded(early[2])
    assert tested.begin(1.0, "read") is None
    assert tested.succeeded(probe)
    assert not tested.failed(early[1], "timeout", 1.0)
    assert tested.begin(1.0, "read") is not None


@given(st.lists(st.tuples(st.sampled_from(["begin", "succeeded", "timeout", "error"]), st.floats(0, 20))))
def test_whatever_happens_it_lets_the_store_be_tried_again(events: list[tuple[str, float]]) -> None:
    tested, now, permits = breaker(), 0.0, list[Permit]()
    for event, seconds in events:
        now += seconds
        if event == "begin":
            permit = tested.begin(now, "read")
            if permit is not None:
                permits.append(permit)
        elif permits:
            permit = permits.pop(0)
            if event == "succeeded":
                tested.succeeded(permit)
            else:
                tested.failed(permit, "timeout" if event == "timeout" else "error", now)
    for permit in permits:
        tested.failed(permit, "error", now)
    assert tested.state != "half_open"
    assert tested.begin(now + 8.0, "read") is not None
