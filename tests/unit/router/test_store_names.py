from __future__ import annotations

from pagefall.router.store_names import StoreNames


def test_it_never_has_more_than_its_bound_and_remembers_the_last_half() -> None:
    names = StoreNames(100)
    for name in range(1000):
        names.add([name])
        assert len(names) <= 100
    assert all(name in names for name in range(950, 1000))
    assert 0 not in names


def test_what_is_asked_for_is_not_forgotten() -> None:
    names = StoreNames(100)
    names.add([7])
    for name in range(1000, 2000):
        names.add([name])
        assert names.num_leading([7, 8]) == 1


def test_leading_names_end_at_the_first_that_is_missing() -> None:
    names = StoreNames(100)
    names.add([1, 2, 4])
    assert names.num_leading([1, 2, 3, 4]) == 2
    assert names.num_leading([3, 4]) == 0


def test_a_deleted_name_is_gone_from_both_generations() -> None:
    names = StoreNames(4)
    names.add([1, 2, 3])
    names.discard([1, 3, 9])
    assert [name in names for name in (1, 2, 3)] == [False, True, False]


def test_a_name_that_is_added_again_counts_once() -> None:
    names = StoreNames(4)
    names.add([1, 2, 1])
    assert len(names) == 2


def test_cleared_it_is_empty() -> None:
    names = StoreNames(4)
    names.add([1, 2, 3])
    names.clear()
    assert len(names) == 0


def test_with_a_bound_of_zero_nothing_is_remembered() -> None:
    names = StoreNames(0)
    names.add([1])
    assert 1 not in names
