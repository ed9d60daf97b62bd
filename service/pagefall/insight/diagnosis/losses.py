"""What each loss is called, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pagefall.insight.diagnosis.report import Cause, Diagnosis, Evidence, Loss, TierGain

HEADLINES: Final[Mapping[Cause, str]] = {
    "volatile_text": "text that changes from prompt to prompt stands in front of text that does not",
    "whitespace": "versions of one prompt differ in white space alone",
    "json_order": "the same JSON comes in varying order",
    "rewritten_history": "conversations do not keep their earlier messages",
    "salts": "one prompt is cached under several salts",
    "routing": "one prompt is cached on several workers",
    "capacity": "the cache is too small for this traffic",
    "too_short": "prompts are too short to be cached",
    "page_tail": "pages are long for these prompts",
    "below_threshold": "the store was not asked, as too few tokens were missing",
    "store_down": "the store was down",
    "store_slow": "the store is slower than computing",
    "store_damaged": "pages in the store were damaged",
    "gone_from_store": "pages were gone from the store",
    "other_model": "the store has these prompts from another model or other settings",
    "no_room": "there was no room to load what the store has",
    "flushed": "the cache was flushed",
    "cache_disabled": "the cache is switched off",
    "does_not_repeat": "prompts have little in common",
}

ADVICE: Final[Mapping[Cause, str]] = {
    "whitespace": "Build the prompt in one place, and normalise it there: one kind of line end, no trailing spaces, "
    "Unicode NFC, no byte order mark.",
    "json_order": "Sort before sending: the tools by name, the keys of objects with sort_keys=True or its like.",
    "rewritten_history": "Only append to a conversation. Where it has to be cut, keep its head and cut seldom and much "
    "(to a half, say) in place of a little each turn: after a cut, the turns that follow are cached again.",
    "salts": "Leave cache_salt out, or give one to all who may share, where the common part is no secret. Where salts "
    "separate tenants on purpose, this is the price.",
    "routing": "Send prompts with the same head to the same worker (cache-aware routing, or a hash of the head), or "
    "give the workers one store.",
    "too_short": "A smaller --page-size would cache them; such prompts cost little to compute.",
    "page_tail": "A smaller --page-size wastes less of each prompt; pages cost a little each to manage.",
    "below_threshold": "Lower --hicache-prefetch-threshold if the store answers quickly.",
    "store_down": "Look at the store and at the network to it. Until it answers, prompts are computed.",
    "store_slow": "A faster store or network helps, or a larger host pool in front of it (--hicache-size). If this "
    "costs nothing but what you see here, it is as it should be: computing was quicker.",
    "store_damaged": "Run `pagefall cache verify --delete`, and look at the disk.",
    "gone_from_store": "Give the store more room (its max_bytes), or find out who deletes from it.",
    "other_model": "Servers share pages only with the same weights, dtype and page size: `pagefall cache diff`.",
    "no_room": "A larger host pool (--hicache-size or --hicache-ratio) has room for what is loaded.",
    "flushed": "Flush the cache only for measurements: /flush_cache costs every prompt that would have been found.",
    "cache_disabled": "Start the server without --disable-radix-cache.",
    "does_not_repeat": "No cache helps here. Put what prompts have in common (instructions, tools, examples, "
    "documents) first and keep it the same to the letter; if they have nothing in common, this is as good as it gets.",
}


def loss(
    cause: Cause,
    num_tokens: float,
    evidence: Evidence,
    *,
    seconds_per_token: float | None,
    is_measured: bool = False,
    advice: str | None = None,
) -> Loss:
    """With the advice that goes with the cause, unless it has one of its own."""
    return Loss(
        cause=cause,
        num_tokens=round(num_tokens),
        seconds=None if seconds_per_token is None else num_tokens * seconds_per_token,
        is_measured=is_measured,
        evidence=evidence,
        advice=ADVICE[cause] if advice is None else advice,
    )


def ranked(losses: Sequence[Loss]) -> tuple[Loss, ...]:
    """By tokens; that traffic does not repeat is what remains when everything else is said."""
    return tuple(sorted(losses, key=lambda each: (each.cause == "does_not_repeat", -each.num_tokens)))


def capacity_advice(gains: Sequence[TierGain], *, num_tokens: float) -> str:
    """Which tier to make larger, by what each would bring of `num_tokens`."""
    parts = [
        f"twice the {gain.tier} tier would find {gain.num_extra_tokens:,} tokens more"
        for gain in sorted(gains, key=lambda gain: -gain.num_extra_tokens)
        if gain.num_extra_tokens >= 0.05 * num_tokens and gain.num_extra_tokens > 0
    ]
    tiers = {gain.tier for gain in gains}
    if parts:
        text = "; ".join(parts)
        advice = f"{text[0].upper()}{text[1:]}."
    elif gains:
        advice = "Doubling one tier alone brings little: what is asked for again comes back too late even for that."
    else:
        advice = "More room is needed: --max-total-tokens or --mem-fraction-static."
    if "host" not in tiers:
        advice += " Host memory is a tier of its own: --enable-hierarchical-cache --hicache-ratio N."
    elif "storage" not in tiers:
        advice += " A store below host memory keeps what has to go: --hicache-storage-backend."
    return advice


def verdict(diagnosis: Diagnosis) -> str:
    """One or two sentences: how it stands, and what to look at first."""
    if not diagnosis.num_requests:
        return "There are no requests to look at."
    stand = _stand(diagnosis)
    first = next(iter(diagnosis.losses), None)
    if first is None:
        return f"{stand} Nothing is wrong."
    if first.cause == "does_not_repeat":
        return f"{stand} This traffic does not repeat itself: {HEADLINES[first.cause]}."
    share = first.num_tokens / diagnosis.num_prompt_tokens
    return f"{stand} The largest loss: {HEADLINES[first.cause]} ({share:.0%} of all prompt tokens)."


def _stand(diagnosis: Diagnosis) -> str:
    ceiling = f"{diagnosis.ceiling or 0:.1%}"
    if diagnosis.hit_rate is None:
        return f"An infinite cache would reach a hit rate of {ceiling} with these prompts."
    how = "is" if diagnosis.is_measured else "would be, in a cache of this size,"
    return f"The hit rate {how} {diagnosis.hit_rate:.1%}; an infinite cache would reach {ceiling}."
