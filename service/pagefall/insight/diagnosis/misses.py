"""What the server itself counted: tokens that it knew, or could have known, and missed, by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis.losses import loss
from pagefall.insight.diagnosis.observations import Observation
from pagefall.insight.diagnosis.report import Cause, Evidence, Loss
from pagefall.messages import MissedPages, MissReason

_CAUSES: Final[dict[MissReason, Cause]] = {
    "evicted": "capacity",
    "other_namespace": "other_model",
    "below_threshold": "below_threshold",
    "slower_than_recompute": "store_slow",
    "timed_out": "store_slow",
    "store_down": "store_down",
    "corrupt": "store_damaged",
    "no_room": "no_room",
    "copy_failed": "no_room",
    "cache_disabled": "cache_disabled",
}
"""The others are no faults of the cache: their causes are sought in the prompts."""

_ONLY_KNOWN: Final = frozenset({"below_threshold", "cache_disabled"})
"""Reasons that are also said of tokens that nobody had seen before."""


def measured_losses(
    observations: Sequence[Observation],
    usable: npt.NDArray[np.int64],
    *,
    seconds_per_token: float | None,
) -> list[Loss]:
    """One loss for each cause, but `capacity`, which `evicted_tokens` has. `usable[i]`: what an infinite cache would
    have given of prompt `i`.
    """
    num_tokens: Counter[Cause] = Counter()
    prompts: defaultdict[Cause, set[int]] = defaultdict(set)
    details: defaultdict[Cause, Counter[str]] = defaultdict(Counter)
    for number, observation in enumerate(observations):
        for miss in observation.report.misses if observation.report is not None else ():
            cause = cause_of(miss)
            if cause is None or cause == "capacity":
                continue
            num_missed = miss.num_tokens
            if miss.reason in _ONLY_KNOWN:
                assert observation.report is not None
                first = miss.first_page * observation.report.page_size
                num_missed = min(num_missed, max(0, int(usable[number]) - first))
            if num_missed:
                num_tokens[cause] += num_missed
                prompts[cause].add(number)
                details[cause][miss.detail or _words(miss)] += num_missed
    return [
        loss(
            cause,
            tokens,
            Evidence(
                text="; ".join(f"{count:,} tokens: {text}" for text, count in details[cause].most_common(3)),
                num_prompts=len(prompts[cause]),
            ),
            seconds_per_token=seconds_per_token,
            is_measured=True,
        )
        for cause, tokens in num_tokens.items()
    ]


def evicted_tokens(observations: Sequence[Observation]) -> tuple[int, int, Counter[str]]:
    """Tokens that had been cached and had to go for others, in how many prompts, and how many of each tier."""
    total = num_prompts = 0
    by_tier: Counter[str] = Counter()
    for observation in observations:
        missed = 0
        for miss in observation.report.misses if observation.report is not None else ():
            if cause_of(miss) == "capacity":
                missed += miss.num_tokens
                by_tier[miss.tier or "device"] += miss.num_tokens
        total += missed
        num_prompts += missed > 0
    return total, num_prompts, by_tier


def cause_of(miss: MissedPages) -> Cause | None:
    """None for what the cache could not help."""
    if miss.reason == "evicted" and miss.cause == "flushed":
        return "flushed"
    if miss.reason == "evicted" and miss.cause == "gone_from_store":
        return "gone_from_store"
    if miss.reason == "slower_than_recompute" and miss.tier != "storage":
        return None  # host memory is as fast as it is
    return _CAUSES.get(miss.reason)


def _words(miss: MissedPages) -> str:
    if miss.reason != "slower_than_recompute" or miss.load_seconds is None or miss.compute_seconds is None:
        return miss.reason.replace("_", " ")
    quotient = miss.load_seconds / max(miss.compute_seconds, 1e-9)
    return (
        f"loading would have taken about {quotient:.0f} times as long as computing"
        if quotient >= 1.5
        else "computing was quicker"
    )
