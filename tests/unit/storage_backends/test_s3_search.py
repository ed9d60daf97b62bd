"""Counting leading keys with few requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefall_storage.s3_search import LeadingSearch


def search(are_there: Sequence[bool], num_probes: int) -> tuple[int, int]:
    """The answer and the number of rounds."""
    search, num_rounds = LeadingSearch(len(are_there), num_probes), 0
    while probes := search.probes():
        assert len(probes) <= max(2, num_probes)
        assert probes == sorted(set(probes))
        search.learn(probes, [are_there[index] for index in probes])
        num_rounds += 1
    return search.num_leading, num_rounds


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 64))
def test_where_all_before_the_last_are_there_the_answer_is_exact(num_there: int, num_missing: int, probes: int) -> None:
    answer, _ = search([True] * num_there + [False] * num_missing, probes)
    assert answer == num_there


@given(st.lists(st.booleans(), max_size=16))
def test_up_to_as_many_keys_as_probes_the_answer_is_exact_with_holes_too(are_there: list[bool]) -> None:
    answer, num_rounds = search(are_there, 16)
    assert answer == next((i for i, is_there in enumerate(are_there) if not is_there), len(are_there))
    assert num_rounds <= 1


@given(st.lists(st.booleans(), max_size=300), st.integers(1, 20))
def test_with_holes_the_last_of_the_answer_is_there_and_the_next_is_not(are_there: list[bool], probes: int) -> None:
    answer, _ = search(are_there, probes)
    assert answer == 0 or are_there[answer - 1]
    assert answer == len(are_there) or not are_there[answer]


@pytest.mark.parametrize("num_there", [0, 256])
def test_all_or_nothing_is_found_in_one_round(num_there: int) -> None:
    assert search([True] * num_there + [False] * (256 - num_there), 16) == (num_there, 1)


@pytest.mark.parametrize(("num_keys", "max_rounds"), [(256, 3), (4096, 4)])
def test_a_prefix_is_found_in_few_rounds(num_keys: int, max_rounds: int) -> None:
    for num_there in range(0, num_keys, 7):
        _, num_rounds = search([True] * num_there + [False] * (num_keys - num_there), 16)
        assert num_rounds <= max_rounds
