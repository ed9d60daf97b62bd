"""Every routing policy by its name, and those that look at no cache."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, assert_never

from pagefall.router.approximate import CHARACTERS_PER_TOKEN, ApproximateTree, num_prompt_tokens
from pagefall.router.cache_aware import CacheAware
from pagefall.router.cost import CostWeights
from pagefall.router.hash_ring import HashRing
from pagefall.router.index import PrefixIndex
from pagefall.router.routing import Choice, Policy, PolicyName, RouteRequest, WorkerId, WorkerView
from pagefall.router.turns import Turns

LOAD_BOUND: Final = 1.25
"""`consistent_hash` gives no worker more than this times the mean of what is outstanding."""

_HEAD_TOKENS: Final = 64
"""The head of a prompt that stands for a session that has no name."""


def make_policy(
    name: PolicyName,
    *,
    index: PrefixIndex | None = None,
    approximate: ApproximateTree | None = None,
    weights: CostWeights | None = None,
    seed: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Policy:
    """All but `seed`, which `random` takes, are for `cache_aware`. What is not given is new.

    Whoever subscribes to events gives the index they go to.
    """
    match name:
        case "cache_aware":
            return CacheAware(index=index or PrefixIndex(), approximate=approximate, weights=weights, clock=clock)
        case "round_robin":
            return RoundRobin()
        case "random":
            return RandomChoice(random.Random(seed))
        case "least_load":
            return LeastLoad()
        case "consistent_hash":
            return ConsistentHash()
        case _:
            assert_never(name)


class RoundRobin:
    """The worker that was not chosen for longest. One that joins is next, once."""

    def __init__(self) -> None:
        self._turns = Turns()

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        chosen = self._turns.take([worker.worker_id for worker in workers])
        return _choice(chosen, request, "its turn")

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        pass

    def removed(self, worker_id: WorkerId) -> None:
        self._turns.forget(worker_id)


class RandomChoice:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        return _choice(self._rng.choice(workers).worker_id, request, "drawn at random")

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        pass

    def removed(self, worker_id: WorkerId) -> None:
        pass


class LeastLoad:
    """Fewest outstanding requests, then fewest prefill tokens, then the one that was not chosen for longest."""

    def __init__(self) -> None:
        self._turns = Turns()

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        loads = {worker.worker_id: _load(worker) for worker in workers}
        least = min(loads.values())
        chosen = self._turns.take([worker_id for worker_id, load in loads.items() if load == least])
        return _choice(chosen, request, f"fewest outstanding: {least[0]} requests, {least[1]} prefill tokens")

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        pass

    def removed(self, worker_id: WorkerId) -> None:
        self._turns.forget(worker_id)


class ConsistentHash:
    """A session's requests go to one worker, unless that has more than its share: see `LOAD_BOUND`."""

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        outstanding = {worker.worker_id: worker.num_outstanding for worker in workers}
        bound = math.ceil(LOAD_BOUND * (sum(outstanding.values()) + 1) / len(workers))
        order = list(_ring(tuple(sorted(outstanding))).order(_session(request)))
        # One has less than the mean, so one is below the bound.
        chosen = next(worker_id for worker_id in order if outstanding[worker_id] < bound)
        reason = "its share of the ring" if chosen == order[0] else f"{order[0]} has more than its share"
        return _choice(chosen, request, reason)

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        pass

    def removed(self, worker_id: WorkerId) -> None:
        pass


@lru_cache(maxsize=64)
def _ring(worker_ids: tuple[WorkerId, ...]) -> HashRing:
    return HashRing(worker_ids)


def _session(request: RouteRequest) -> str:
    """Where nothing names the session, the head of its prompt does: it stays the same from turn to turn."""
    if request.session_key:
        return request.session_key
    if request.token_ids is not None:
        return request.token_ids[:_HEAD_TOKENS].tobytes().hex()
    return request.text[: _HEAD_TOKENS * CHARACTERS_PER_TOKEN]


def _load(worker: WorkerView) -> tuple[int, int]:
    return worker.num_outstanding, worker.num_outstanding_prefill_tokens


def _choice(worker_id: WorkerId, request: RouteRequest, reason: str) -> Choice:
    return Choice(worker_id=worker_id, reason=reason, num_prompt_tokens=num_prompt_tokens(request))
