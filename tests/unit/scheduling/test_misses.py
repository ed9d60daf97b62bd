"""Each page of a prompt that was not cached has one reason, and it is the right one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scheduling_driver import Driver, prompt
from tests.tier_driver import TierDriver

from pagefall.config import CacheConfig, PrefetchPolicy, SchedulerConfig, TierConfig
from pagefall.messages import (
    AttachStorage,
    Fetch,
    FetchEnded,
    FetchOutcome,
    LoadBack,
    LookedUp,
    Lookup,
    MissedPages,
    PagesFetched,
    PrefixReport,
    StorageAnswer,
)

DOCUMENT = prompt(1, 41)  # ten pages of four, and the token that is always computed


def make(
    *,
    prefetch: PrefetchPolicy = "auto",
    storage: bool = True,
    num_pages: int = 64,
    num_host_pages: int = 256,
    threshold: int = 8,
) -> TierDriver:
    return TierDriver(
        tiers=TierConfig(
            enable_hierarchical_cache=True,
            hicache_storage_backend="memory" if storage else None,
            hicache_storage_prefetch_policy=prefetch,
            hicache_prefetch_threshold=threshold,
        ),
        num_pages=num_pages,
        num_host_pages=num_host_pages,
        scheduler=SchedulerConfig(chunked_prefill_size=16),
    )


def report(driver: Driver, name: str, token_ids: list[int] = DOCUMENT, *, cache_salt: str = "") -> PrefixReport:
    driver.submit(name, token_ids, max_tokens=2, cache_salt=cache_salt)
    driver.run()
    return driver.reports[name]


def reasons(report: PrefixReport) -> list[tuple[str, int, int]]:
    """Reason, first token, number of tokens."""
    return [(miss.reason, miss.first_page * report.page_size, miss.num_tokens) for miss in report.misses]


def first(report: PrefixReport) -> MissedPages:
    return report.misses[0]


def test_a_prompt_that_nobody_has_asked_before_was_never_seen() -> None:
    driver = Driver()
    assert reasons(report(driver, "a")) == [("never_seen", 0, 40), ("page_tail", 40, 1)]
    assert driver.reports["a"].divergence is None
    assert driver.reports["a"].num_known_tokens == 0


def test_the_page_with_the_last_token_is_the_tail_even_where_it_is_full() -> None:
    driver = Driver()
    report(driver, "a")
    assert reasons(report(driver, "again")) == [("page_tail", 40, 1)]
    assert reasons(report(driver, "ten pages", DOCUMENT[:40])) == [("page_tail", 36, 4)]
    assert driver.reports["ten pages"].num_known_tokens == 36


@pytest.mark.parametrize("index", [1, 3, 4, 7, 18, 39])
def test_a_prompt_diverges_at_the_first_token_that_differs(index: int) -> None:
    driver = Driver()
    report(driver, "a")
    other = [*DOCUMENT[:index], 7, *DOCUMENT[index + 1 :]]
    found = report(driver, "b", other)
    start = index // 4 * 4
    assert reasons(found) == [("diverged", start, 40 - start), ("page_tail", 40, 1)]
    divergence = found.divergence
    assert divergence is not None
    assert divergence.token_index == index
    assert divergence.is_cached
    assert divergence.other_request_id in ("a", None)
    window = divergence.other_token_ids
    assert list(window[: index - divergence.window_start]) == DOCUMENT[divergence.window_start : index]
    assert window[index - divergence.window_start] == DOCUMENT[index]


def test_of_several_paths_the_one_that_shares_most_is_the_nearest() -> None:
    driver = Driver(num_pages=256)
    head = prompt(2, 8)
    for name, tail in (("x", [1, 2, 3, 4]), ("y", [1, 2, 9, 4]), ("z", [8, 2, 3, 4])):
        report(driver, name, [*head, *tail, *prompt(3, 8)])
    divergence = report(driver, "q", [*head, 1, 2, 9, 5, *prompt(4, 8)]).divergence
    assert divergence is not None
    assert divergence.token_index == 11
    assert divergence.other_token_ids[11 - divergence.window_start] == 4


def test_a_first_page_that_differs_is_compared_with_the_latest_prompts() -> None:
    driver = Driver(num_pages=256)
    for index in range(10):
        report(driver, str(index), [5, 6, 100 + index, *DOCUMENT])
    divergence = report(driver, "q", [5, 6, 7, *DOCUMENT]).divergence
    assert divergence is not None
    assert (divergence.token_index, divergence.has_other) == (2, True)
    assert reasons(driver.reports["q"])[0] == ("diverged", 0, 40)


def test_the_next_turn_of_a_conversation_is_new_text_not_a_divergence() -> None:
    driver = Driver()
    report(driver, "turn 1")
    turn_2 = [*DOCUMENT, *driver.answers["turn 1"], *prompt(5, 9)]
    found = report(driver, "turn 2", turn_2)
    assert reasons(found) == [("never_seen", 40, 8), ("page_tail", 48, 4)]
    divergence = found.divergence
    assert divergence is not None
    # The answer's last token was sampled and is known, though its keys and values were never computed.
    assert (divergence.token_index, divergence.has_other) == (43, False)
    assert divergence.other_request_id == "turn 1"


def test_a_page_evicted_for_want_of_room_says_when() -> None:
    driver = Driver(num_pages=16)
    report(driver, "a")
    evicted_at = None
    for index in range(3):
        report(driver, f"other {index}", prompt(10 + index, 41))
        evicted_at = evicted_at or driver.now
    driver.now += 100
    found = report(driver, "a again")
    miss = first(found)
    assert (miss.reason, miss.tier, miss.cause, miss.first_page) == ("evicted", "device", "pool_full", 0)
    assert miss.seconds_ago is not None
    assert miss.seconds_ago > 100
    assert found.num_known_tokens == 40
    assert sum(miss.num_tokens for miss in found.misses if miss.reason == "evicted") == 40


def test_a_prompt_that_leaves_an_evicted_path_is_evicted_up_to_there_and_diverged_behind() -> None:
    driver = Driver()
    report(driver, "a")
    driver.state.cache.flush(driver.now)
    found = report(driver, "b", [*DOCUMENT[:22], 7, *DOCUMENT[23:]])
    assert reasons(found) == [("evicted", 0, 20), ("diverged", 20, 20), ("page_tail", 40, 1)]
    assert first(found).cause == "flushed"
    assert found.divergence is not None
    assert (found.divergence.token_index, found.divergence.is_cached) == (22, False)
    assert found.divergence.other_request_id == "a"


def test_pages_evicted_from_the_host_were_last_there() -> None:
    driver = make(storage=False)
    report(driver, "a")
    driver.flush("device", "host")
    miss = first(report(driver, "b"))
    assert (miss.reason, miss.tier, miss.cause) == ("evicted", "host", "flushed")


def test_a_store_that_has_lost_a_page_is_where_it_was_evicted_from() -> None:
    driver = make(prefetch="wait_complete")
    report(driver, "a")
    driver.flush("device", "host")
    driver.store.clear()
    miss = first(report(driver, "b"))
    assert (miss.reason, miss.tier, miss.cause, miss.num_tokens) == ("evicted", "storage", "gone_from_store", 40)


def test_the_same_prompt_under_another_salt_is_there_and_not_for_this_one() -> None:
    driver = Driver()
    report(driver, "a", cache_salt="one")
    assert reasons(report(driver, "b", cache_salt="two")) == [("other_salt", 0, 40), ("page_tail", 40, 1)]
    assert reasons(report(driver, "c", DOCUMENT[:20] + prompt(9, 9), cache_salt="three")) == [
        ("other_salt", 0, 20),
        ("never_seen", 20, 8),
        ("page_tail", 28, 1),
    ]


def test_few_tokens_are_not_asked_for() -> None:
    driver = make(threshold=100)
    report(driver, "a")
    driver.flush("device", "host")
    assert reasons(report(driver, "b"))[0] == ("below_threshold", 0, 40)


def test_a_short_prompt_after_a_restart_was_not_asked_for_either() -> None:
    driver = make(threshold=100)
    assert reasons(report(driver, "a"))[0] == ("below_threshold", 0, 40)
    # New text behind what this server knows is new text.
    assert reasons(report(driver, "b", [*DOCUMENT, *driver.answers["a"], *prompt(7, 8)]))[0] == ("never_seen", 40, 8)


def test_a_short_prompt_that_leaves_a_known_one_in_its_first_page_diverged() -> None:
    driver = make(threshold=100)
    report(driver, "a")
    assert reasons(report(driver, "b", [*DOCUMENT[:2], *prompt(7, 30)]))[0] == ("diverged", 0, 28)


def ask_the_store(driver: TierDriver) -> Lookup:
    report(driver, "a")
    driver.flush("device", "host")
    driver.submit("b", DOCUMENT, max_tokens=2)
    [pending] = driver.collect()
    assert isinstance(pending.message, Lookup)
    driver.pending.remove(pending)
    return pending.message


@pytest.mark.parametrize(
    ("answer", "reason"), [("timeout", "timed_out"), ("error", "store_down"), ("breaker_open", "store_down")]
)
def test_a_store_that_does_not_say_what_it_has(answer: StorageAnswer, reason: str) -> None:
    driver = make()
    lookup = ask_the_store(driver)
    driver.report(LookedUp(transfer_id=lookup.transfer_id, num_present=0, answer=answer, seconds=1.0))
    driver.run()
    assert reasons(driver.reports["b"]) == [(reason, 0, 40), ("page_tail", 40, 1)]
    assert first(driver.reports["b"]).detail


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("corrupt", "corrupt"),
        ("timeout", "timed_out"),
        ("error", "store_down"),
        ("breaker_open", "store_down"),
        ("miss", "evicted"),
    ],
)
def test_one_page_that_could_not_be_read(outcome: FetchOutcome, reason: str) -> None:
    driver = make(prefetch="wait_complete")
    lookup = ask_the_store(driver)
    driver.report(LookedUp(transfer_id=lookup.transfer_id, num_present=10, answer="answered", seconds=0.001))
    [pending] = driver.collect()
    fetch = pending.message
    assert isinstance(fetch, Fetch)
    driver.pending.remove(pending)
    for position, key in enumerate(fetch.keys):
        driver.host[fetch.host_page_ids[position]] = driver.store[key]
    outcomes: list[FetchOutcome] = ["hit"] * 10
    outcomes[3] = outcome
    driver.report(PagesFetched(transfer_id=fetch.transfer_id, indices=tuple(range(10)), outcomes=tuple(outcomes)))
    driver.report(FetchEnded(transfer_id=fetch.transfer_id, num_bytes=9000, first_seconds=0.001, seconds=0.01))
    driver.run()
    found = driver.reports["b"]
    assert reasons(found) == [(reason, 12, 4), ("page_tail", 40, 1)]
    assert found.num_tokens_by_source["storage"] == 36


def test_loading_that_takes_far_longer_than_computing_is_declined_with_the_numbers() -> None:
    driver = make()
    report(driver, "a")
    driver.tiers.storage_link.observe(first_seconds=50.0, seconds=5000.0, num_bytes=10_000)
    driver.state.prefill_cost._seconds = 0.1
    driver.state.prefill_cost._num_tokens = 1.0
    driver.state.prefill_cost._weights = (0.0, 0.1, 0.0, 0.0)
    driver.flush("device", "host")
    driver.submit("b", DOCUMENT, max_tokens=2)
    driver.settle()
    driver.run()
    miss = first(driver.reports["b"])
    assert (miss.reason, miss.tier, miss.num_tokens) == ("slower_than_recompute", "storage", 40)
    assert miss.load_seconds is not None
    assert miss.compute_seconds is not None
    assert miss.load_seconds > miss.compute_seconds


def test_best_effort_takes_what_has_arrived_and_the_rest_was_too_late() -> None:
    driver = make(prefetch="best_effort")
    report(driver, "a")
    driver.flush("device", "host")
    driver.submit("b", DOCUMENT, max_tokens=2)
    while not driver.state.is_idle:
        driver.step()
    assert first(driver.reports["b"]).reason == "timed_out"
    driver.run()


def test_a_host_pool_without_room_for_the_stores_pages() -> None:
    driver = make(prefetch="wait_complete", num_host_pages=12)
    report(driver, "a")
    driver.flush("device", "host")
    found = report(driver, "b")
    assert found.num_tokens_by_source["storage"] == 24
    assert reasons(found) == [("no_room", 24, 16), ("page_tail", 40, 1)]


def test_a_copy_to_the_device_that_failed() -> None:
    driver = make(storage=False)
    report(driver, "a")
    driver.flush("device")
    driver.submit("b", DOCUMENT, max_tokens=2)
    driver.step()
    [pending] = driver.collect()
    assert isinstance(pending.message, LoadBack)
    driver.perform(pending, fails=True)
    driver.run()
    assert reasons(driver.reports["b"]) == [("copy_failed", 0, 40), ("page_tail", 40, 1)]


def test_without_a_cache_that_is_the_reason() -> None:
    driver = Driver(cache=CacheConfig(disable_radix_cache=True))
    report(driver, "a")
    assert reasons(report(driver, "b")) == [("cache_disabled", 0, 41)]


def test_a_request_that_ends_before_its_start_has_reached_nothing() -> None:
    driver = Driver()
    driver.submit("a", DOCUMENT)
    driver.cancel("a")
    found = driver.reports["a"]
    assert reasons(found) == [("unreached", 0, 41)]
    assert found.num_tokens_by_source["unreached"] == 41


def test_a_request_that_ends_amid_its_prompt_has_reached_what_was_computed() -> None:
    driver = Driver(scheduler=SchedulerConfig(chunked_prefill_size=16))
    driver.submit("a", DOCUMENT)
    driver.step()
    driver.cancel("a")
    found = driver.reports["a"]
    assert reasons(found) == [("never_seen", 0, 16), ("unreached", 16, 25)]
    assert (found.num_tokens_by_source["computed"], found.num_tokens_by_source["unreached"]) == (16, 25)


def test_a_store_that_is_attached_later_does_not_have_what_went_before() -> None:
    driver = make(storage=False)
    report(driver, "a")
    driver.flush("device", "host")
    driver.change_storage(AttachStorage(backend="memory", extra_config={}))
    driver.settle()
    driver.settle()
    miss = first(report(driver, "b"))
    assert (miss.reason, miss.tier) == ("evicted", "host")


def test_without_a_history_sources_still_add_up() -> None:
    driver = Driver(history_tokens=0)
    report(driver, "a")
    assert reasons(report(driver, "b")) == [("page_tail", 40, 1)]
    assert driver.state.cache.take_changes() == []


def test_a_history_of_few_tokens_forgets_the_oldest_and_stays_right_about_the_rest() -> None:
    driver = Driver(num_pages=1024, history_tokens=100)
    report(driver, "a")
    for index in range(5):
        report(driver, f"other {index}", prompt(10 + index, 41))
    driver.state.cache.flush(driver.now)
    assert first(report(driver, "a again")).reason in ("never_seen", "evicted")
    assert first(report(driver, "other again", prompt(14, 41))).reason == "evicted"
    assert np.isfinite(driver.reports["a again"].saved_seconds)
