from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from tests.kv_event_server import packed

from pagefall.kv_events import Cleared, Entered, Left
from pagefall.messages import Tier
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import CacheFacts, PageLayout, TierPages
from pagefall.router.routing import WorkerId

LAYOUT = PageLayout(b"n" * 32, 16)
A, B, C = WorkerId("http://a"), WorkerId("http://b"), WorkerId("http://c")


def joined(index: PrefixIndex, worker: WorkerId, store_id: str | None = "", **held: list[int]) -> None:
    index.begin_snapshot(worker, CacheFacts(LAYOUT, store_id))
    tiers: tuple[Tier, ...] = ("device", "host", "storage")
    for tier in tiers:
        index.held(worker, tier, packed(held.get(tier, [])))
    index.end_snapshot(worker)


def found(index: PrefixIndex, names: list[int]) -> dict[WorkerId, TierPages]:
    return index.lookup(LAYOUT, [names])


def test_leading_pages_count_for_the_nearest_tier_that_has_them() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1, 2], host=[2, 3, 4], storage=[1, 2, 3, 4, 5])
    joined(index, B, store_id=None, device=[1, 3], host=[1])
    assert found(index, [1, 2, 3, 4, 5, 6]) == {A: TierPages(2, 2, 1), B: TierPages(1, 0, 0)}


def test_a_page_behind_one_that_is_missing_counts_for_nothing() -> None:
    index = PrefixIndex()
    joined(index, A, device=[2, 3])
    assert found(index, [1, 2, 3]) == {A: TierPages()}


def test_tiers_may_alternate_along_a_prompt() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1, 4, 6], host=[3], storage=[2, 5])
    assert found(index, [1, 2, 3, 4, 5, 6, 7]) == {A: TierPages(3, 1, 2)}


def test_what_one_worker_stores_counts_for_all_who_share_the_store() -> None:
    index = PrefixIndex()
    joined(index, A, store_id="s")
    joined(index, B, store_id="s")
    joined(index, C, store_id="other")
    index.apply(A, Entered(number=1, tier="storage", names=packed([1, 2])))
    assert found(index, [1, 2, 3]) == {A: TierPages(0, 0, 2), B: TierPages(0, 0, 2), C: TierPages()}
    index.apply(B, Left(number=1, tier="storage", names=packed([2])))
    assert found(index, [1, 2, 3])[A] == TierPages(0, 0, 1)


def test_stores_that_no_worker_has_any_more_are_forgotten_when_they_are_many() -> None:
    index = PrefixIndex(max_stored_pages=100)
    for number in range(20):
        joined(index, A, store_id=f"of life {number}")
        index.apply(A, Entered(number=1, tier="storage", names=packed(range(60))))
    assert index.num_stored_names <= 2 * 100
    index.drop(A)
    assert index.num_stored_names <= 100
    joined(index, A, store_id="of life 19")
    assert index.num_pages(A, "storage") == 60, "the last one is still known"


def test_a_store_keeps_what_a_worker_stored_that_is_gone() -> None:
    index = PrefixIndex()
    joined(index, A, storage=[1, 2])
    joined(index, B)
    index.drop(A)
    assert found(index, [1, 2]) == {B: TierPages(0, 0, 2)}


def test_workers_of_another_namespace_are_not_found() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1])
    index.begin_snapshot(B, CacheFacts(PageLayout(b"m" * 32, 16)))
    index.held(B, "device", packed([1]))
    index.end_snapshot(B)
    assert found(index, [1]) == {A: TierPages(1, 0, 0)}


def test_no_further_part_of_a_prompt_is_asked_for_when_no_worker_has_the_last_one() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1, 2])
    taken = []

    def parts() -> Iterator[list[int]]:
        for part in ([1, 2], [3, 4], [5, 6]):
            taken.append(part)
            yield part

    assert index.lookup(LAYOUT, parts()) == {A: TierPages(2, 0, 0)}
    assert taken == [[1, 2], [3, 4]]


def test_until_a_snapshot_ends_lookups_see_what_was_before_and_then_nothing_of_it() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1, 2], host=[3])
    index.begin_snapshot(A, CacheFacts(LAYOUT))
    index.held(A, "device", packed([1]))
    assert found(index, [1, 2, 3])[A] == TierPages(2, 1, 0)
    index.end_snapshot(A)
    assert found(index, [1, 2, 3])[A] == TierPages(1, 0, 0)
    assert index.num_pages(A, "device") == 1
    assert index.num_pages(A, "host") == 0


def test_a_snapshot_that_never_ends_changes_nothing() -> None:
    index = PrefixIndex()
    joined(index, A, device=[1])
    index.begin_snapshot(A, CacheFacts(LAYOUT))
    index.held(A, "device", packed([1, 2]))
    index.abandon_snapshot(A)
    assert found(index, [1, 2])[A] == TierPages(1, 0, 0)
    with pytest.raises(KeyError):
        index.end_snapshot(A)


def test_a_worker_of_which_only_a_part_of_a_snapshot_was_seen_is_not_in_the_index() -> None:
    index = PrefixIndex()
    index.begin_snapshot(A, CacheFacts(LAYOUT))
    index.held(A, "device", packed([1]))
    assert A not in index
    assert found(index, [1]) == {}


@pytest.mark.parametrize("tier", ["device", "host", "storage"])
def test_a_cleared_tier_is_empty_and_the_others_are_as_they_were(tier: Tier) -> None:
    index = PrefixIndex()
    joined(index, A, device=[1], host=[2], storage=[3])
    index.expect(A, [9], until=1.0)
    index.apply(A, Cleared(number=1, tier=tier))
    sizes = {kind: index.num_pages(A, kind) for kind in ("device", "host", "storage")}
    assert sizes == {"device": 1, "host": 1, "storage": 1} | {tier: 0}
    for kind, name in (("device", 1), ("host", 2), ("storage", 3)):
        assert found(index, [name])[A].num_pages == (kind != tier)
    assert found(index, [9])[A].num_pages == (tier != "device")


def test_a_page_that_enters_twice_counts_once() -> None:
    index = PrefixIndex()
    joined(index, A)
    for number in (1, 2):
        index.apply(A, Entered(number=number, tier="host", names=packed([1, 2])))
    assert index.num_pages(A, "host") == 2
    index.apply(A, Left(number=3, tier="host", names=packed([1, 2, 3])))
    assert index.num_pages(A, "host") == 0


def test_what_was_sent_counts_for_the_device_until_its_time_is_over() -> None:
    index = PrefixIndex()
    joined(index, A)
    index.expect(A, [1, 2], until=5.0)
    index.expire(4.9)
    assert found(index, [1, 2])[A] == TierPages(2, 0, 0)
    index.expire(5.0)
    assert found(index, [1, 2])[A] == TierPages()
    assert index.num_names == 0


def test_what_is_sent_again_is_expected_for_longer() -> None:
    index = PrefixIndex()
    joined(index, A)
    index.expect(A, [1], until=5.0)
    index.expect(A, [1], until=8.0)
    index.expire(6.0)
    assert found(index, [1])[A] == TierPages(1, 0, 0)
    index.expire(8.0)
    assert found(index, [1])[A] == TierPages()


def test_an_event_about_an_expected_page_ends_the_expectation() -> None:
    index = PrefixIndex()
    joined(index, A)
    index.expect(A, [1, 2], until=5.0)
    index.apply(A, Entered(number=1, tier="device", names=packed([1])))
    index.apply(A, Left(number=2, tier="device", names=packed([1, 2])))
    assert found(index, [1])[A] == TierPages()
    assert found(index, [2])[A] == TierPages()
    assert index.num_expected(A) == 0


def test_a_page_that_entered_stays_when_its_expectation_would_have_ended() -> None:
    index = PrefixIndex()
    joined(index, A)
    index.expect(A, [1], until=5.0)
    index.apply(A, Entered(number=1, tier="device", names=packed([1])))
    index.expire(6.0)
    assert found(index, [1])[A] == TierPages(1, 0, 0)


def test_expectations_are_bounded() -> None:
    index = PrefixIndex(max_expected_pages=10)
    joined(index, A)
    for start in range(0, 1000, 5):
        index.expect(A, list(range(start, start + 5)), until=5.0)
    assert index.num_expected(A) == 10
    index.expire(5.0)
    index.expect(A, [5000], until=9.0)
    assert index.num_expected(A) == 1


def test_a_worker_that_is_dropped_leaves_no_names_behind_once_the_table_was_swept() -> None:
    index = PrefixIndex()
    joined(index, A, device=list(range(5000)))
    joined(index, B, host=list(range(4000, 6000)))
    index.drop(A)
    assert A not in index
    assert found(index, [1]) == {B: TierPages()}
    for _ in range(300):
        found(index, [1])
    assert index.num_names == 2000
    assert found(index, list(range(4000, 6000)))[B] == TierPages(0, 2000, 0)


def test_many_snapshots_in_a_row_do_not_make_the_table_grow() -> None:
    index = PrefixIndex()
    for life in range(500):
        joined(index, A, device=[life * 10 + page for page in range(10)])
    assert found(index, list(range(4990, 5000)))[A] == TierPages(10, 0, 0)
    assert found(index, [4980])[A] == TierPages()
    assert index._num_slots < 100
    for _ in range(600):
        found(index, [1])
    assert index.num_names == 10


def test_sixty_four_workers_are_told_apart() -> None:
    index = PrefixIndex()
    ids = [WorkerId(f"http://{number}") for number in range(64)]
    for number, worker in enumerate(ids):
        joined(index, worker, store_id=None, device=list(range(number)), host=list(range(number + 5)))
    pages = found(index, list(range(100)))
    assert pages == {worker: TierPages(number, 5, 0) for number, worker in enumerate(ids)}


def test_events_of_a_worker_that_is_not_in_the_index_are_refused() -> None:
    with pytest.raises(KeyError):
        PrefixIndex().apply(A, Entered(number=1, tier="device", names=packed([1])))


def test_a_million_distinct_prompts_leave_only_what_the_workers_hold() -> None:
    index = PrefixIndex(max_stored_pages=1000)
    joined(index, A)
    names = np.random.default_rng(1).integers(0, 2**63, 1_000_000, dtype=np.uint64)
    step = 2000
    before: bytes | None = None
    for number, start in enumerate(range(0, 100_000, step)):
        some = names[start : start + step].tobytes()
        index.apply(A, Entered(number=3 * number + 1, tier="device", names=some))
        index.apply(A, Entered(number=3 * number + 2, tier="storage", names=some))
        if before is not None:
            index.apply(A, Left(number=3 * number + 3, tier="device", names=before))
        before = some
    assert index.num_names == step
    assert index.num_pages(A, "storage") <= 1000


def test_a_page_takes_at_most_120_bytes() -> None:
    names = np.random.default_rng(1).integers(0, 2**63, 30_000, dtype=np.uint64)
    tracemalloc.start()
    try:
        index = PrefixIndex()
        for number in range(8):
            joined(index, WorkerId(str(number)))
            part = names[number::8]
            index.apply(WorkerId(str(number)), Entered(number=1, tier="device", names=part.tobytes()))
            index.apply(WorkerId(str(number)), Entered(number=1, tier="host", names=part.tobytes()))
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.num_names == 30_000
    assert num_bytes / index.num_names < 120
