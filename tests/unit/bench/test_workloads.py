from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pagefall.bench.workloads import MultiTurn, Round, SharedPrefix, multi_turn, repeated, shared_prefix

SMALL = MultiTurn(sessions=3, turns=4, first_tokens=50, turn_tokens=7, output_tokens=5)
GROUPS = SharedPrefix(groups=3, questions=5, prompt_tokens=40, shared=0.9, output_tokens=2)


def common_head(first: Sequence[int], second: Sequence[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def seen_by_an_infinite_cache(rounds: Sequence[Round]) -> list[int]:
    """What each request's prompt has in common with the most alike one before it, without its last token."""
    before: list[tuple[int, ...]] = []
    seen = []
    for request in (request for requests in rounds for request in requests):
        most = max((common_head(request.token_ids, prompt) for prompt in before), default=0)
        seen.append(min(most, len(request.token_ids) - 1))
        before.append(request.token_ids)
    return seen


@pytest.mark.parametrize("rounds", [multi_turn(SMALL, random.Random(1)), shared_prefix(GROUPS, random.Random(1))])
def test_the_ceiling_is_what_a_cache_that_never_forgets_would_find(rounds: list[Round]) -> None:
    claimed = [request.num_seen_tokens for requests in rounds for request in requests]
    assert claimed == seen_by_an_infinite_cache(rounds)
    assert sum(claimed) > 0


def test_a_workload_sent_again_has_been_seen_but_for_the_last_tokens() -> None:
    rounds = multi_turn(SMALL, random.Random(1))
    again = repeated(rounds)
    assert [request.token_ids for requests in again for request in requests] == [
        request.token_ids for requests in rounds for request in requests
    ]
    assert [request.num_seen_tokens for requests in again for request in requests] == seen_by_an_infinite_cache(
        [*rounds, *rounds]
    )[12:]


def test_every_session_has_one_request_a_round_and_they_change_places() -> None:
    rounds = multi_turn(
        MultiTurn(sessions=8, turns=6, first_tokens=8, turn_tokens=4, output_tokens=2), random.Random(0)
    )
    orders = [[request.token_ids[:8] for request in requests] for requests in rounds]
    assert all(len(set(order)) == 8 for order in orders)
    assert len({tuple(order) for order in orders}) == 6


def test_a_turn_is_all_before_it_a_stand_in_for_the_answer_and_new_tokens() -> None:
    rounds = multi_turn(SMALL, random.Random(0))
    assert [{len(request.token_ids) for request in requests} for requests in rounds] == [{50}, {62}, {74}, {86}]
    assert [requests[0].part for requests in rounds] == ["turn 1", "turn 2", "turn 3", "turn 4"]


def test_the_headline_workload_has_a_ceiling_of_80_percent() -> None:
    requests = [r for requests in multi_turn(MultiTurn(), random.Random(0)) for r in requests]
    assert len(requests) == 48
    assert sum(r.num_seen_tokens for r in requests) / sum(len(r.token_ids) for r in requests) == pytest.approx(
        0.803, abs=1e-3
    )


def test_questions_of_a_group_share_the_system_prompt_and_no_other() -> None:
    (requests,) = shared_prefix(GROUPS, random.Random(0))
    assert len(requests) == 15
    assert {len(request.token_ids) for request in requests} == {40}
    assert len({request.token_ids[:36] for request in requests}) == 3
    assert len({request.token_ids for request in requests}) == 15
    assert sum(request.part == "first of its group" for request in requests) == 3


def test_a_prompt_that_is_shared_whole_still_computes_its_last_token() -> None:
    (requests,) = shared_prefix(SharedPrefix(groups=1, questions=2, prompt_tokens=10, shared=1.0), random.Random(0))
    assert [request.num_seen_tokens for request in requests] == [0, 9]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_makes_the_same_workload_again(seed: int) -> None:
    assert multi_turn(SMALL, random.Random(seed)) == multi_turn(SMALL, random.Random(seed))
    assert multi_turn(SMALL, random.Random(seed)) != multi_turn(SMALL, random.Random(seed + 1))
