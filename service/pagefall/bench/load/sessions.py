"""A workload's sessions, all of them made of its sizes and a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import assert_never

from pagefall.bench.load.shapes import GeneratedSharedPrefix, LongDoc, MultiTurn, RandomPrompts, Shape, Tiers, Trace
from pagefall.bench.load.turns import Piece, Preparation, Session, Turn


def sessions(shape: Shape, rng: random.Random, *, can_restart: bool = False) -> Iterator[Session]:
    """The sessions of `shape` in the order in which they begin; of random prompts there is no end.

    The same `rng` gives the same sessions. `can_restart`: `tiers` ends with a restart. A trace has its sessions from
    its file (`trace.py`), not from here.
    """
    match shape:
        case GeneratedSharedPrefix():
            return iter(_shared_prefix(shape, rng))
        case MultiTurn():
            return iter([_conversation(shape, user, rng) for user in range(shape.users)])
        case LongDoc():
            return iter(_long_doc(shape, rng))
        case Tiers():
            return iter([_tiers(shape, can_restart=can_restart)])
        case RandomPrompts():
            return _random(shape, rng)
        case Trace():
            raise ValueError("a trace is read, not made")
        case _:
            assert_never(shape)


def _shared_prefix(shape: GeneratedSharedPrefix, rng: random.Random) -> list[Session]:
    order = [(group, question) for group in range(shape.groups) for question in range(shape.prompts_per_group)]
    rng.shuffle(order)
    found: list[Session] = []
    started: set[int] = set()
    for group, question in order:
        system = Piece(key=f"system {group}", num_tokens=shape.system_tokens, role="system")
        asked = Piece(
            key=f"question {group}.{question}", num_tokens=_length(shape.question_tokens, shape.length_spread, rng)
        )
        part = "later in its group" if group in started else "first of its group"
        started.add(group)
        output_tokens = _length(shape.output_tokens, shape.length_spread, rng)
        found.append(_single(Turn(part=part, pieces=(system, asked), output_tokens=output_tokens)))
    return found


def _conversation(shape: MultiTurn, user: int, rng: random.Random) -> Session:
    said: list[Piece] = []
    if shape.system_tokens:
        said.append(Piece(key="system", num_tokens=shape.system_tokens, role="system"))
    turns: list[Turn] = []
    for number in range(shape.turns):
        num_tokens = shape.turn_tokens if number else shape.first_tokens
        said.append(Piece(key=f"user {user}.{number}", num_tokens=_length(num_tokens, shape.length_spread, rng)))
        output_tokens = _length(shape.output_tokens, shape.length_spread, rng)
        answer = Piece(
            key=f"answer {user}.{number}",
            num_tokens=output_tokens,
            role="assistant",
            answer_to=number if shape.answers == "real" else None,
        )
        turns.append(
            Turn(
                part=f"turn {number + 1}",
                pieces=tuple(said),
                output_tokens=output_tokens,
                answer_key=answer.key if shape.answers == "real" else None,
                think_seconds=shape.think_seconds if number else 0.0,
            )
        )
        said.append(answer)
    return Session(turns=tuple(turns))


def _long_doc(shape: LongDoc, rng: random.Random) -> list[Session]:
    later = [(document, number) for document in range(shape.documents) for number in range(1, shape.questions)]
    rng.shuffle(later)
    first = [(document, 0) for document in range(shape.documents)]
    found: list[Session] = []
    for document, number in first + later:
        pieces = [Piece(key=f"document {document}", num_tokens=shape.document_tokens)]
        if shape.question_tokens:
            num_tokens = _length(shape.question_tokens, shape.length_spread, rng)
            pieces.append(Piece(key=f"question {document}.{number}", num_tokens=num_tokens))
        turn = Turn(
            part="later question" if number else "first question",
            pieces=tuple(pieces),
            output_tokens=_length(shape.output_tokens, shape.length_spread, rng),
        )
        found.append(_single(turn))
    return found


def _tiers(shape: Tiers, *, can_restart: bool) -> Session:
    first, second = (
        Turn(
            part="",
            pieces=(Piece(key=f"document {name}", num_tokens=shape.document_tokens),),
            output_tokens=shape.output_tokens,
        )
        for name in ("a", "b")
    )
    turns = [_as_part(first, "cold"), _as_part(first, "same again"), _as_part(second, "new document")]
    if shape.evict_tokens:
        sizes = [part for part in _cut(shape.evict_tokens, shape.document_tokens) if part]
        turns += [
            Turn(
                part="filler",
                pieces=(Piece(key=f"filler {number}", num_tokens=num_tokens),),
                output_tokens=1,
                is_measured=False,
            )
            for number, num_tokens in enumerate(sizes)
        ]
        turns.append(_as_part(first, "after eviction", preparation="settle"))
    if can_restart:
        turns.append(_as_part(first, "after restart", preparation="restart"))
    return Session(turns=tuple(turns))


def _random(shape: RandomPrompts, rng: random.Random) -> Iterator[Session]:
    for number in itertools.count():
        piece = Piece(key=f"prompt {number}", num_tokens=_length(shape.input_tokens, shape.length_spread, rng))
        output_tokens = _length(shape.output_tokens, shape.length_spread, rng)
        yield _single(Turn(part="random", pieces=(piece,), output_tokens=output_tokens))


def _cut(total: int, size: int) -> list[int]:
    """`total` in parts of `size`, the last one shorter."""
    return [size] * (total // size) + [total % size]


def _as_part(turn: Turn, part: str, *, preparation: Preparation | None = None) -> Turn:
    return Turn(part=part, pieces=turn.pieces, output_tokens=turn.output_tokens, preparation=preparation)


def _single(turn: Turn) -> Session:
    return Session(turns=(turn,))


def _length(mean: int, spread: float, rng: random.Random) -> int:
    """Uniform within `spread`, a share of `mean`, either way; at least 1."""
    return mean if spread == 0 else max(1, round(mean * (1 + spread * (2 * rng.random() - 1))))
