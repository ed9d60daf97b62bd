"""Conversations whose earlier messages do not stay as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis.observations import Observation, Section
from pagefall.insight.diagnosis.replay import Sections

_SHORTEST: Final = 24
"""Characters of a message that tells a conversation from others."""

_MAX_LOOKED_UP: Final = 8
"""Messages from the end by which a prompt's conversation is sought."""

RewriteKind = Literal["dropped", "changed", "inserted"]


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that repeats messages of prompt number `earlier`, but behind others than there.

    `message_index`: the first message that is another one. `num_moved`: how far the repeated ones moved to the front.
    `num_characters` of repeated messages.
    """

    kind: RewriteKind
    prompt: int
    earlier: int
    message_index: int
    num_moved: int
    num_characters: int


def find_rewrites(observations: Sequence[Observation], prompts: Sequence[Sections]) -> list[Rewrite]:
    """At most one for each prompt, against the latest prompt that has a message of it under the same `cache_salt`."""
    latest: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    found = []
    for number, (observation, prompt) in enumerate(zip(observations, prompts, strict=True)):
        salt = observation.cache_salt
        rewrite = _rewrite(prompt, number, prompts, salt, latest)
        if rewrite is not None:
            found.append(rewrite)
        for position, section in enumerate(prompt):
            if _is_telling(section):
                latest[salt, section.role, section.content] = (number, position)
    return found


def tokens_lost(
    rewrites: Sequence[Rewrite],
    num_tokens: npt.NDArray[np.int64],
    usable: npt.NDArray[np.float64],
    tokens_per_character: npt.NDArray[np.float64],
) -> int:
    """Tokens of the repeated messages that `usable`, what an infinite cache gives of each prompt, has not."""
    total = 0.0
    for rewrite in rewrites:
        repeated = rewrite.num_characters * float(tokens_per_character[rewrite.prompt])
        total += min(repeated, max(0.0, float(num_tokens[rewrite.prompt]) - 1 - float(usable[rewrite.prompt])))
    return round(total)


def _rewrite(
    prompt: Sections,
    number: int,
    prompts: Sequence[Sections],
    salt: str,
    latest: dict[tuple[str, str | None, str], tuple[int, int]],
) -> Rewrite | None:
    for position in range(len(prompt) - 1, max(-1, len(prompt) - 1 - _MAX_LOOKED_UP), -1):
        section = prompt[position]
        if not _is_telling(section):
            continue
        known = latest.get((salt, section.role, section.content))
        if known is not None:
            return _compare(prompt, number, position, prompts[known[0]], known[0], known[1])
    return None


def _compare(
    prompt: Sections, number: int, position: int, earlier: Sections, earlier_number: int, earlier_position: int
) -> Rewrite | None:
    """They agree in one message, at `position` and `earlier_position`."""
    same = 0
    while same < min(len(prompt), len(earlier)) and _agree(prompt[same], earlier[same]):
        same += 1
    if same == len(earlier) or same > position:
        return None  # it goes on where the other ended, or is another question after the same messages
    first = position
    moved = earlier_position - position
    while first > same and first - 1 + moved >= 0 and _agree(prompt[first - 1], earlier[first - 1 + moved]):
        first -= 1
    if first == same and moved == 0:
        return None
    kind: RewriteKind = "dropped" if moved > 0 else "changed" if moved == 0 else "inserted"
    return Rewrite(
        kind=kind,
        prompt=number,
        earlier=earlier_number,
        message_index=prompt[same].message_index or 0,
        num_moved=moved,
        num_characters=sum(len(section.content) for section in prompt[first : position + 1]),
    )


def _agree(one: Section, other: Section) -> bool:
    return one.role == other.role and one.content == other.content


def _is_telling(section: Section) -> bool:
    return section.role in ("user", "assistant", "tool") and len(section.content) >= _SHORTEST
