from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest

from pagefall.router.hash_ring import HashRing
from pagefall.router.policies import LOAD_BOUND, make_policy
from pagefall.router.routing import PolicyName, RouteRequest, WorkerId, WorkerView

IDS = [WorkerId(f"http://{number}") for number in range(8)]


def views(num_workers: int = 4, running: dict[int, int] | None = None) -> list[WorkerView]:
    running = running or {}
    return [
        WorkerView(
            worker_id=worker,
            num_outstanding=running.get(number, 0),
            num_outstanding_prefill_tokens=0,
        )
        for number, worker in enumerate(IDS[:num_workers])
    ]


def session(name: str) -> RouteRequest:
    return RouteRequest(token_ids=None, text="a prompt", session_key=name)


@pytest.mark.parametrize("name", get_args(PolicyName))
def test_every_policy_chooses_one_of_the_workers_and_says_why(name: PolicyName) -> None:
    policy = make_policy(name)
    for number in range(20):
        choice = policy.choose(session(str(number)), views(3))
        assert choice.worker_id in IDS[:3]
        assert choice.reason
        policy.sent(session(str(number)), choice)
        policy.removed(choice.worker_id)
    assert policy.choose(session("alone"), views(1)).worker_id == IDS[0]


def test_round_robin_takes_turns_and_a_newcomer_is_next_once() -> None:
    policy = make_policy("round_robin")
    assert [policy.choose(session(""), views(2)).worker_id for _ in range(4)] == [*IDS[:2], *IDS[:2]]
    assert [policy.choose(session(""), views(3)).worker_id for _ in range(4)] == [IDS[2], *IDS[:3]]


def test_random_is_the_same_for_the_same_seed_and_even() -> None:
    drawn = [
        [policy.choose(session(""), views()).worker_id for _ in range(400)]
        for policy in (make_policy("random", seed=3), make_policy("random", seed=3), make_policy("random", seed=4))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert min(Counter(drawn[0]).values()) > 70


def test_least_load_takes_the_fewest_outstanding_and_takes_turns_among_equals() -> None:
    policy = make_policy("least_load")
    assert policy.choose(session(""), views(running={0: 3, 1: 1, 2: 2, 3: 4})).worker_id == IDS[1]
    assert [policy.choose(session(""), views(running={1: 1})).worker_id for _ in range(3)] == [IDS[0], IDS[2], IDS[3]]


def test_a_session_keeps_its_worker() -> None:
    policy = make_policy("consistent_hash")
    assert len({policy.choose(session("s"), views()).worker_id for _ in range(10)}) == 1


def test_a_session_without_a_name_is_known_by_the_head_of_its_prompt() -> None:
    policy = make_policy("consistent_hash")
    tokens = np.arange(500, dtype=np.uint32)
    turns = [RouteRequest(token_ids=tokens[:length], text="") for length in (100, 300, 500)]
    assert len({policy.choose(turn, views(8)).worker_id for turn in turns}) == 1
    texts = [RouteRequest(token_ids=None, text="word " * length) for length in (100, 300, 500)]
    assert len({policy.choose(turn, views(8)).worker_id for turn in texts}) == 1
    heads = [RouteRequest(token_ids=tokens[start:], text="") for start in range(50)]
    assert len({policy.choose(head, views(8)).worker_id for head in heads}) > 4


def test_a_worker_that_leaves_moves_only_its_own_share() -> None:
    policy = make_policy("consistent_hash")
    keys = [str(number) for number in range(2000)]
    before = {key: policy.choose(session(key), views(8)).worker_id for key in keys}
    rest = [view for view in views(8) if view.worker_id != IDS[3]]
    after = {key: policy.choose(session(key), rest).worker_id for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == IDS[3]}


def test_the_shares_of_a_ring_are_about_equal() -> None:
    ring = HashRing(IDS)
    shares = Counter(next(ring.order(str(number))) for number in range(8000))
    assert max(shares.values()) < 1.3 * 1000
    assert min(shares.values()) > 0.7 * 1000


def test_a_ring_names_every_worker_once() -> None:
    assert sorted(HashRing(IDS).order("key")) == sorted(IDS)


def test_no_worker_has_more_than_its_bound_of_one_hot_session() -> None:
    policy = make_policy("consistent_hash")
    running: Counter[int] = Counter()
    for _ in range(100):
        chosen = policy.choose(session("hot"), views(running=running)).worker_id
        running[IDS.index(chosen)] += 1
    assert max(running.values()) <= LOAD_BOUND * 100 / 4 + 1
    assert min(running.values()) > 0


def test_a_session_whose_worker_is_full_says_so() -> None:
    policy = make_policy("consistent_hash")
    home = policy.choose(session("s"), views()).worker_id
    moved = policy.choose(session("s"), views(running={IDS.index(home): 50}))
    assert moved.worker_id != home
    assert home in moved.reason
