"""Conversations and shared prompts as lists of requests: what is sent, in which order, and what a cache could know.

Every prompt is token ids, made in advance and the same for every server. That is why the answer in the prompt of a
following turn is a stand-in, as long as the real one: OpenAI's API answers in text, whose encoding need not give back
the tokens that were sampled, and two servers whose answers differ in one rounding would no longer be asked the same.
Only the few pages of the answers themselves go unused for it, on each server alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from pagefall.bench.prompts import TokenPrompts

T = TypeVar("T")


class WorkloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `part` is the line of the report that it counts in.

    `num_seen_tokens`: how much of the head of `token_ids` was in a prompt sent before, at most all but the last token,
    which has to be computed in any case. A cache that never forgets would serve just these.
    """

    part: str
    token_ids: tuple[int, ...]
    num_seen_tokens: int


Round = tuple[WorkloadRequest, ...]
"""Requests that may be sent in any order or at once: nothing in them waits for an answer to another."""


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions that go on for some turns: a coding agent in small."""

    sessions: int = 8
    turns: int = 6
    first_tokens: int = 3_072
    turn_tokens: int = 256
    output_tokens: int = 16


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang's `generated-shared-prefix`: groups of questions, each group under one system prompt.

    `shared` is the share of a prompt of `prompt_tokens` that its group has in common.
    """

    groups: int = 4
    questions: int = 16
    prompt_tokens: int = 3_072
    shared: float = 0.9
    output_tokens: int = 16


def multi_turn(workload: MultiTurn, rng: random.Random) -> list[Round]:
    """A round for each turn, every session in it once, in an order of its own."""
    new = _new_tokens(rng)
    prompts = [new(workload.first_tokens) for _ in range(workload.sessions)]
    rounds: list[Round] = []
    num_seen_tokens = 0
    for turn in range(workload.turns):
        requests = [
            WorkloadRequest(part=f"turn {turn + 1}", token_ids=prompt, num_seen_tokens=num_seen_tokens)
            for prompt in prompts
        ]
        rounds.append(_shuffled(requests, rng))
        num_seen_tokens = len(prompts[0])
        prompts = [prompt + new(workload.output_tokens) + new(workload.turn_tokens) for prompt in prompts]
    return rounds


def shared_prefix(workload: SharedPrefix, rng: random.Random) -> list[Round]:
    """One round of all questions; whichever of a group comes first has seen nothing."""
    new = _new_tokens(rng)
    num_shared = round(workload.shared * workload.prompt_tokens)
    questions = [
        (group, system + new(workload.prompt_tokens - num_shared))
        for group, system in enumerate(new(num_shared) for _ in range(workload.groups))
        for _ in range(workload.questions)
    ]
    seen: set[int] = set()
    requests: list[WorkloadRequest] = []
    for group, token_ids in _shuffled(questions, rng):
        is_first = group not in seen
        seen.add(group)
        requests.append(
            WorkloadRequest(
                part="first of its group" if is_first else "later in its group",
                token_ids=token_ids,
                num_seen_tokens=0 if is_first else min(num_shared, len(token_ids) - 1),
            )
        )
    return [tuple(requests)]


def repeated(rounds: Sequence[Round]) -> list[Round]:
    """The same requests once more, to a cache that has seen all of them."""
    return [
        tuple(msgspec.structs.replace(request, num_seen_tokens=len(request.token_ids) - 1) for request in requests)
        for requests in rounds
    ]


def _new_tokens(rng: random.Random) -> Callable[[int], tuple[int, ...]]:
    prompts = TokenPrompts(rng)
    return lambda num_tokens: tuple(prompts.make(num_tokens))


def _shuffled(items: Sequence[T], rng: random.Random) -> tuple[T, ...]:
    return tuple(rng.sample(items, len(items)))
