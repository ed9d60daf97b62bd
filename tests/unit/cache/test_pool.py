from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefall.cache.errors import ConservationError, PageError
from pagefall.cache.pool import PagePool
from pagefall.messages import PageIds


def pages(*page_ids: int) -> PageIds:
    return np.array(page_ids, dtype=np.int32)


def taken(pool: PagePool, num_pages: int, *, after: int | None = None) -> PageIds:
    page_ids = pool.allocate(num_pages, after=after)
    assert page_ids is not None
    assert page_ids.dtype == np.int32
    return page_ids


def num_runs(page_ids: PageIds) -> int:
    return 1 + int(np.count_nonzero(np.diff(page_ids) != 1))


def test_an_empty_pool_starts_at_page_0() -> None:
    assert taken(PagePool(100), 5).tolist() == [0, 1, 2, 3, 4]


def test_a_sequence_grows_right_behind_its_last_page() -> None:
    pool = PagePool(100)
    first = taken(pool, 3)
    taken(pool, 3)
    assert taken(pool, 4, after=int(first[-1])).tolist() == [3, 4, 5, 6]


def test_a_new_sequence_leaves_as_much_room_in_front_of_it_as_behind_it() -> None:
    pool = PagePool(104)
    taken(pool, 4)
    assert taken(pool, 10).tolist() == list(range(49, 59))  # 45 pages free on both sides


def test_new_sequences_spread_over_the_largest_extents() -> None:
    pool = PagePool(1024)
    sequences = [taken(pool, 1) for _ in range(8)]
    for _ in range(60):
        sequences = [np.concatenate((held, taken(pool, 1, after=int(held[-1])))) for held in sequences]
    assert [num_runs(held) for held in sequences] == [1] * 8


def test_an_extent_that_is_hardly_larger_is_used_from_its_head() -> None:
    pool = PagePool(16)
    taken(pool, 4)
    assert taken(pool, 6).tolist() == list(range(4, 10))


def test_one_extent_that_fits_is_preferred_to_several() -> None:
    pool = PagePool(20)
    taken(pool, 20)
    pool.free(pages(0, 1, 5, 6, 7, 8, 12, 13))
    assert taken(pool, 4).tolist() == [5, 6, 7, 8]


def test_where_none_fits_the_fewest_extents_are_used() -> None:
    pool = PagePool(20)
    taken(pool, 20)
    pool.free(pages(0, 2, 3, 5, 7, 8, 9))
    assert taken(pool, 5).tolist() == [7, 8, 9, 2, 3]


def test_a_growing_sequence_takes_what_is_behind_it_and_the_rest_elsewhere() -> None:
    pool = PagePool(20)
    taken(pool, 20)
    pool.free(pages(3, 4, 10, 11, 12))
    assert taken(pool, 4, after=2).tolist() == [3, 4, 10, 11]


def test_an_allocation_is_all_or_nothing() -> None:
    pool = PagePool(4)
    taken(pool, 2)
    assert pool.allocate(3) is None
    assert pool.num_free == 2
    assert taken(pool, 2).tolist() == [2, 3]
    assert pool.allocate(1) is None


def test_nothing_can_be_had_of_an_empty_pool_but_nothing() -> None:
    pool = PagePool(0)
    assert pool.allocate(1) is None
    assert taken(pool, 0).tolist() == []


def test_negative_numbers_of_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        PagePool(-1)
    with pytest.raises(ValueError, match="-1"):
        PagePool(1).allocate(-1)


def test_freed_neighbours_become_one_extent_again() -> None:
    pool = PagePool(12)
    taken(pool, 12)
    for page_ids in (pages(0, 1, 2), pages(6, 7, 8), pages(5, 4, 3), pages(11, 9, 10)):
        pool.free(page_ids)
    assert taken(pool, 12).tolist() == list(range(12))


@pytest.mark.parametrize(
    ("page_ids", "message"),
    [
        (pages(2, 7), "page 7 is free already"),
        (pages(2, 3, 2), "page 2 was freed twice"),
        (pages(2, 10), "page 10 is not one of this pool's 10 pages"),
        (pages(-1, 2), "page -1 is not one"),
    ],
)
def test_freeing_what_is_not_held_is_an_error_that_changes_nothing(page_ids: PageIds, message: str) -> None:
    pool = PagePool(10)
    taken(pool, 5)
    with pytest.raises(PageError, match=message):
        pool.free(page_ids)
    pool.check()
    assert pool.num_free == 5
    pool.free(pages(0, 1, 2, 3, 4))


def test_the_heap_of_extents_stays_small_however_long_the_pool_is_used() -> None:
    pool = PagePool(64)
    for _ in range(5_000):
        pool.free(taken(pool, 7))
    assert len(pool._by_length) < 100


def test_a_recount_notices_a_wrong_counter_and_a_lost_extent() -> None:
    pool = PagePool(8)
    pool.num_free -= 1
    with pytest.raises(ConservationError, match="7 pages are counted as free, the map has 8"):
        pool.check()
    pool = PagePool(8)
    pool._remove(0)
    with pytest.raises(ConservationError, match="extents hold 0 free pages, the map 8"):
        pool.check()


@given(st.data())
def test_no_page_has_two_holders_and_none_is_lost(data: st.DataObject) -> None:
    pool = PagePool(data.draw(st.integers(1, 40)))
    held: list[PageIds] = []
    for _ in range(data.draw(st.integers(1, 30))):
        give_back = data.draw(st.booleans())
        if give_back and held:
            index = data.draw(st.integers(0, len(held) - 1))
            gone, kept = np.split(held[index], [data.draw(st.integers(0, len(held[index])))])
            pool.free(gone)
            held[index] = kept
        else:
            after = data.draw(st.none() | st.integers(0, pool.num_pages - 1))
            asked = data.draw(st.integers(0, pool.num_pages))
            num_free = pool.num_free
            page_ids = pool.allocate(asked, after=after)
            assert (page_ids is None) == (asked > num_free)
            if page_ids is not None:
                assert len(page_ids) == asked
                held.append(page_ids)
        pool.check()
        everywhere = np.concatenate([pool.free_page_ids(), *held])
        assert np.sort(everywhere).tolist() == list(range(pool.num_pages))
