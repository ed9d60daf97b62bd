"""The workloads and their sizes. Lengths are in tokens, by the server's own count about."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

AnswerKind = Literal["stand-in", "real"]
"""What a following turn's prompt has in the place of an answer: words of our own, the same for every server, or what
the server said."""

_LENGTHS: Final = frozenset(
    {"system_tokens", "question_tokens", "first_tokens", "turn_tokens", "document_tokens", "input_tokens"}
    | {"output_tokens", "evict_tokens"}
)
_COUNTS: Final = frozenset({"groups", "users", "active_users", "documents"})


class GeneratedSharedPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="generated-shared-prefix", tag_field="name"):
    """Groups of questions, each group under one system prompt, in random order."""

    groups: int = 8
    prompts_per_group: int = 8
    system_tokens: int = 1_024
    question_tokens: int = 64
    output_tokens: int = 32
    length_spread: float = 0.0


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, tag="multi-turn", tag_field="name"):
    """Users who talk for some turns, each prompt with all before it. `system_tokens` are the same for all of them.

    `active_users`: how many talk at the same time; None: all of them.
    """

    users: int = 8
    turns: int = 6
    system_tokens: int = 0
    first_tokens: int = 1_024
    turn_tokens: int = 128
    output_tokens: int = 32
    think_seconds: float = 0.0
    active_users: int | None = None
    answers: AnswerKind = "stand-in"
    length_spread: float = 0.0


class LongDoc(msgspec.Struct, frozen=True, kw_only=True, tag="long-doc", tag_field="name"):
    """Long documents: every one is read once, then the further questions about all of them come in random order.

    `question_tokens` 0: the same prompt again.
    """

    documents: int = 4
    questions: int = 4
    document_tokens: int = 4_096
    question_tokens: int = 32
    output_tokens: int = 32
    length_spread: float = 0.0


class Tiers(msgspec.Struct, frozen=True, kw_only=True, tag="tiers", tag_field="name"):
    """One document at a time: cold, the same again, a new one, and the first again after `evict_tokens` of others and
    after a restart of the server, where it can be restarted.
    """

    document_tokens: int = 2_048
    evict_tokens: int = 16_384
    output_tokens: int = 8


class RandomPrompts(msgspec.Struct, frozen=True, kw_only=True, tag="random", tag_field="name"):
    """Prompts that share nothing."""

    input_tokens: int = 512
    output_tokens: int = 64
    length_spread: float = 0.0


class Trace(msgspec.Struct, frozen=True, kw_only=True, tag="trace", tag_field="name"):
    """Requests from a file, at its times `trace_speed` times as fast. `output_tokens` where a line does not say."""

    trace: str
    trace_speed: float = 1.0
    output_tokens: int = 128


ShapeName = Literal["generated-shared-prefix", "multi-turn", "long-doc", "tiers", "trace", "random"]

Shape = GeneratedSharedPrefix | MultiTurn | LongDoc | Tiers | RandomPrompts | Trace

SHAPES: Final[dict[ShapeName, type[Shape]]] = {
    "generated-shared-prefix": GeneratedSharedPrefix,
    "multi-turn": MultiTurn,
    "long-doc": LongDoc,
    "tiers": Tiers,
    "trace": Trace,
    "random": RandomPrompts,
}


def scaled(shape: Shape, scale: float) -> Shape:
    """Lengths and numbers of groups, users and documents times `scale`, never below 1; what was 0 stays 0.

    Turns, questions a document and prompts a group stay, and with them, nearly, the share of tokens that repeat.
    """
    sizes: dict[str, Any] = {
        name: scaled_count(value, scale)
        for name, value in msgspec.structs.asdict(shape).items()
        if name in _LENGTHS | _COUNTS and value
    }
    return msgspec.structs.replace(shape, **sizes)


def scaled_count(count: int, scale: float) -> int:
    return max(1, round(count * scale))
