"""What a diagnosis says: the JSON of `GET /cache/diagnose` and of `pagefall doctor --json`."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.messages import Tier

Cause = Literal[
    "volatile_text",
    "whitespace",
    "json_order",
    "rewritten_history",
    "salts",
    "routing",
    "capacity",
    "too_short",
    "page_tail",
    "below_threshold",
    "store_down",
    "store_slow",
    "store_damaged",
    "gone_from_store",
    "other_model",
    "no_room",
    "flushed",
    "cache_disabled",
    "does_not_repeat",
]
"""Why tokens were computed that need not have been.

- `volatile_text`: a short text that changes from prompt to prompt stands before text that does not.
- `whitespace`: versions of one prompt that differ in white space, line ends, or the form of a character alone.
- `json_order`: the same tools, or the same JSON in a prompt, in another order.
- `rewritten_history`: earlier messages of a conversation were changed, or dropped from its head.
- `salts`: the same prompt under several `cache_salt`s.
- `routing`: the same prompt on several workers.
- `capacity`: it was cached, and had to go for others.
- `too_short`: prompts that are shorter than a page and one token.
- `page_tail`: tokens between the end of the last whole page that matched and the first token that differs.
- `below_threshold`, `store_down`, `store_slow`, `store_damaged`, `gone_from_store`: the store could have had it.
- `other_model`: the store has it from another model, or from other settings.
- `no_room`: there was no room to load it into, or copying it failed.
- `flushed`: somebody had the cache flushed.
- `cache_disabled`: the server runs with --disable-radix-cache.
- `does_not_repeat`: prompts have nothing in common, whatever is done about the causes above.
"""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a prompt: a character of a message, counted from 0, or of a prompt that is one text (`message_index`
    and `role` None), or a token of one that came as token ids (`char_offset` None too). The tools, which a template
    puts before the messages, have role "tools".
    """

    message_index: int | None = None
    role: str | None = None
    char_offset: int | None = None
    token_index: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """`examples`: texts that differ where they need not, in the order of their prompts; empty where they are redacted.
    `num_prompts`: the prompts in which it was found.
    """

    text: str
    place: Place | None = None
    examples: tuple[str, ...] = ()
    num_prompts: int = 0


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, and what it cost.

    `num_tokens`: prompt tokens that would have been cached without it. `is_measured`: counted by the server for each
    request; else the difference between two replays of the traffic, one without the cause. Where several causes stand
    in the way of the same tokens, each is said to cost them, since each has to go. `seconds`: of computing; None where
    nobody knows how long a token takes.
    """

    cause: Cause
    num_tokens: int
    seconds: float | None
    is_measured: bool
    evidence: Evidence
    advice: str


class TierGain(msgspec.Struct, frozen=True, kw_only=True):
    """What a tier of twice the size would bring. `num_pages` is its size now.

    `num_extra_tokens` would be found that now are in no tier; `num_nearer_tokens` would be found in this tier that now
    are in a lower one. Both are of an LRU's replay, by reuse distance.
    """

    tier: Tier
    num_pages: int
    num_extra_tokens: int
    num_nearer_tokens: int


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are shares of the prompt tokens, from 0 to 1; None where they are not known.

    `hit_rate`: what came from the cache; `is_measured` says whether the server counted it, or an LRU of the given size
    was replayed. `ceiling`: what an infinite cache would have given. `of_ceiling`: the first over the second, None for
    a ceiling of 0. `attainable`: the ceiling once what the losses say of the prompts is mended. `losses` are ranked by
    tokens, but that `does_not_repeat` stands last.
    """

    verdict: str
    num_requests: int
    num_prompt_tokens: int
    seconds: float | None
    """From the first request to the last, None where requests have no time."""
    page_size: int
    hit_rate: float | None
    is_measured: bool
    ceiling: float | None
    of_ceiling: float | None
    attainable: float | None
    losses: tuple[Loss, ...]
    tiers: tuple[TierGain, ...]
    num_earlier_tokens: int = 0
    """Prompt tokens of requests before these, which were not looked at."""
    age_seconds: float = 0.0
    """Since it was made: above 0 where a server gives its latest one again."""
