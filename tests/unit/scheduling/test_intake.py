from __future__ import annotations

import numpy as np
from tests.scheduling_driver import Driver, planned, prompt

from pagefall.config import SchedulerConfig
from pagefall.messages import Accepted, Rejected, RequestId


def test_a_request_is_refused_when_running_and_waiting_places_are_taken() -> None:
    driver = Driver(scheduler=SchedulerConfig(max_running_requests=2, max_queued_requests=1))
    for name in "abc":
        assert driver.submit(name, prompt(ord(name), 4)) == Accepted(request_id=RequestId(name))
    assert driver.submit("d", [1]) == Rejected(request_id=RequestId("d"), num_queued=3)
    driver.step()
    assert driver.submit("e", [1]) == Rejected(request_id=RequestId("e"), num_queued=1)
    driver.run()
    assert driver.submit("f", [1]) == Accepted(request_id=RequestId("f"))


def test_a_request_that_could_never_have_enough_pages_is_refused_and_says_so() -> None:
    driver = Driver(num_pages=4)
    assert driver.submit("a", [1] * 10, max_tokens=7) == Rejected(
        request_id=RequestId("a"), num_queued=0, reason="never_fits", num_pool_tokens=16
    )
    assert isinstance(driver.submit("b", [1] * 10, max_tokens=6), Accepted)
    driver.run()
    assert len(driver.answers["b"]) == 6


def test_ten_thousand_submissions_past_the_limit_leave_nothing_behind() -> None:
    driver = Driver(scheduler=SchedulerConfig(max_running_requests=2, max_queued_requests=8))
    answers = [driver.submit(str(index), [index]) for index in range(10_010)]
    assert sum(isinstance(answer, Accepted) for answer in answers) == 10
    assert len(driver.state.queue) == 10
    driver.run()
    assert len(driver.finish_reasons) == 10


def test_cancelling_a_waiting_request_ends_it_before_it_ever_ran() -> None:
    driver = Driver(scheduler=SchedulerConfig(max_running_requests=1))
    driver.submit("a", prompt(0, 4))
    driver.submit("b", prompt(1, 4))
    driver.step()
    driver.cancel("b")
    driver.run()
    assert driver.answers["b"] == []
    assert driver.finish_reasons == {"a": "length", "b": "abort"}
    assert not any("b" in planned(plan) for plan in driver.model.plans)


def test_an_aborted_request_returns_every_page_at_once() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 10), max_tokens=50)
    for _ in range(8):
        driver.step()
    driver.cancel("a")
    stats = driver.state.stats()
    assert (stats.num_running, stats.device_pages.leased, stats.device_pages.pinned) == (0, 0, 0)
    assert stats.device_pages.cached == 2, "the prompt's whole pages stay, the answer's do not"


def test_a_request_that_found_its_stop_string_leaves_its_answer_in_the_cache() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 10), max_tokens=50)
    for _ in range(8):
        driver.step()
    driver.cancel("a", stop=True)
    assert driver.finish_reasons == {"a": "stop"}
    # 10 prompt tokens and 8 sampled ones, of which the last has no keys and values.
    assert driver.state.stats().device_pages.cached == 17 // 4


def test_cancelling_between_two_chunks_keeps_what_is_computed() -> None:
    driver = Driver(scheduler=SchedulerConfig(chunked_prefill_size=16))
    driver.submit("a", prompt(0, 40))
    driver.step()
    driver.cancel("a")
    assert driver.state.stats().device_pages.cached == 4
    assert driver.state.stats().device_pages.leased == 0


def test_cancelling_what_is_unknown_or_over_changes_nothing() -> None:
    driver = Driver()
    driver.submit("a", [1], max_tokens=1)
    driver.run()
    assert driver.cancel("a") is None
    assert driver.cancel("never heard of") is None


def test_the_prompt_is_not_written_to() -> None:
    driver = Driver()
    token_ids = np.arange(10, dtype=np.uint32)
    token_ids.flags.writeable = False
    driver.submit("a", token_ids)  # type: ignore[arg-type]
    driver.run()
    assert driver.answers["a"] == driver.model.answer_alone(range(10), 4)
