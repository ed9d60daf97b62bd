"""Workloads for the router's simulation: what clients send, each when the one before it was answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pagefall.messages import TokenIds

VOCABULARY = 50_000


@dataclass(frozen=True, kw_only=True)
class SimRequest:
    token_ids: TokenIds
    num_output: int
    session_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`clients`: each sends its requests one after the other, waiting `think_seconds` after each answer."""

    name: str
    clients: Sequence[Sequence[SimRequest]]
    think_seconds: float = 0.0

    @property
    def num_requests(self) -> int:
        return sum(map(len, self.clients))


def tokens(rng: np.random.Generator, count: int) -> TokenIds:
    return rng.integers(0, VOCABULARY, count, dtype=np.uint32)


def dealt(name: str, requests: Sequence[SimRequest], num_clients: int, rng: np.random.Generator) -> Workload:
    """In random order, to `num_clients` clients."""
    order = [requests[index] for index in rng.permutation(len(requests))]
    return Workload(name=name, clients=[order[start::num_clients] for start in range(num_clients)])


def shared_prefix(
    *, num_groups: int = 64, num_prompts: int = 16, num_prefix: int = 2048, num_question: int = 64, seed: int = 1
) -> Workload:
    """The generated-shared-prefix workload: every prompt of a group begins with the group's system prompt."""
    rng = np.random.default_rng(seed)
    requests = []
    for group in range(num_groups):
        prefix = tokens(rng, num_prefix)
        for _ in range(num_prompts):
            prompt = np.concatenate((prefix, tokens(rng, num_question)))
            requests.append(SimRequest(token_ids=prompt, num_output=32, session_key=f"group {group}"))
    return dealt("shared prefix", requests, 32, rng)


def hot_prefix(*, num_requests: int = 1000, hot_fraction: float = 0.9, seed: int = 2) -> Workload:
    """One system prompt has most of the traffic; the rest shares nothing."""
    rng = np.random.default_rng(seed)
    hot = tokens(rng, 2048)
    requests = []
    for index in range(num_requests):
        is_hot = index < hot_fraction * num_requests
        prompt = np.concatenate((hot if is_hot else tokens(rng, 2048), tokens(rng, 128)))
        requests.append(SimRequest(token_ids=prompt, num_output=32, session_key="hot" if is_hot else str(index)))
    return dealt("hot prefix", requests, 64, rng)


def sessions(*, num_sessions: int = 48, num_turns: int = 10, num_turn_tokens: int = 240, seed: int = 3) -> Workload:
    """Conversations: each turn's prompt is all of the turns before and a new one."""
    rng = np.random.default_rng(seed)
    clients = []
    for session in range(num_sessions):
        whole = tokens(rng, 256 + num_turns * num_turn_tokens)
        clients.append(
            [
                SimRequest(
                    token_ids=whole[: 256 + (turn + 1) * num_turn_tokens],
                    num_output=int(rng.integers(16, 64)),
                    session_key=f"session {session}",
                )
                for turn in range(num_turns)
            ]
        )
    return Workload(name="sessions", clients=clients, think_seconds=0.5)


def unique_prompts(*, num_requests: int = 500, seed: int = 4) -> Workload:
    """Nothing is shared; lengths differ a lot."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(64, 4096, num_requests)
    requests = [
        SimRequest(token_ids=tokens(rng, int(length)), num_output=32, session_key=str(index))
        for index, length in enumerate(lengths)
    ]
    return dealt("unique prompts", requests, 32, rng)
