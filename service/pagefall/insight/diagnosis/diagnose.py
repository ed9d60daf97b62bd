"""The diagnosis: everything that can be said of a stretch of traffic, the largest losses first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from pagefall.insight.diagnosis.ceiling import Keys, PrefixHasher, num_usable_tokens, prompt_keys, seed_of
from pagefall.insight.diagnosis.losses import capacity_advice, loss, ranked, verdict
from pagefall.insight.diagnosis.misses import evicted_tokens, measured_losses
from pagefall.insight.diagnosis.observations import Capacities, Traffic
from pagefall.insight.diagnosis.prompts import prevented_reuse
from pagefall.insight.diagnosis.report import Cause, Diagnosis, Evidence, Loss, TierGain
from pagefall.insight.diagnosis.reuse import ReuseDistances, reuse_distances
from pagefall.insight.diagnosis.spread import widest_spread
from pagefall.messages import PrefixReport, Tier

LEAST_SHARE: Final = 0.01
"""Of all prompt tokens: what costs less is not mentioned."""

_LEAST_TAIL_SHARE: Final = 0.03
_LITTLE: Final = 0.25
"""A ceiling below it, whatever is mended, is that of traffic that does not repeat itself."""

_MAX_TAIL_TOKENS: Final = 4_000_000
_MIN_REQUESTS: Final = 8
"""Fewer say nothing about whether traffic repeats itself."""


class _Facts:
    """What several parts of the diagnosis need, computed once."""

    def __init__(self, traffic: Traffic) -> None:
        self.observations = traffic.observations
        self.page_size = traffic.page_size
        self.num_tokens = np.array([len(each.token_ids) for each in self.observations], dtype=np.int64)
        self.total = int(self.num_tokens.sum())
        self.least_tokens = max(LEAST_SHARE * self.total, 2 * self.page_size)
        self.hasher = PrefixHasher()
        self.keys = self.keys_by([each.cache_salt for each in self.observations])
        self.usable = self.usable_of(self.keys)
        self.is_measured = all(each.report is not None for each in self.observations)
        self.known = self.usable
        if self.is_measured:
            # Answers are cached too, which prompts do not show before they come back in one.
            reports = [each.report for each in self.observations if each.report is not None]
            self.known = np.maximum(self.usable, [max(each.num_known_tokens, num_cached(each)) for each in reports])

    def keys_by(self, owners: Sequence[str], *, block: int | None = None) -> list[Keys]:
        """Keys under which only prompts of one owner are alike."""
        pairs = ((each.token_ids, seed_of(owner)) for each, owner in zip(self.observations, owners, strict=True))
        return prompt_keys(self.hasher, pairs, block or self.page_size)

    def usable_of(self, keys: Sequence[Keys]) -> npt.NDArray[np.int64]:
        return num_usable_tokens(keys, self.num_tokens, self.page_size)


def diagnose(traffic: Traffic, *, show_text: bool = True) -> Diagnosis:
    """With `show_text` false, no text of a prompt is in it."""
    if not traffic.observations:
        return _finished(_empty(traffic))
    facts = _Facts(traffic)
    distances = _distances(facts)
    num_hits = _num_hits(facts, traffic.capacities, distances)
    gains = _gains(traffic, distances)
    prevented = prevented_reuse(
        traffic.observations,
        page_size=traffic.page_size,
        seconds_per_token=traffic.seconds_per_token,
        least_tokens=facts.least_tokens,
        show_text=show_text,
    )
    ceiling = int(facts.known.sum())
    attainable = min(ceiling + prevented.num_tokens, facts.total)
    losses = [*prevented.losses, *_spread_losses(facts, traffic), *_tail_losses(facts, traffic)]
    losses += [
        each
        for each in measured_losses(traffic.observations, facts.known, seconds_per_token=traffic.seconds_per_token)
        if each.num_tokens >= facts.least_tokens
    ]
    losses += _capacity_losses(facts, traffic, num_hits, gains)
    if attainable < _LITTLE * facts.total and len(traffic.observations) >= _MIN_REQUESTS and not prevented.losses:
        losses.append(_does_not_repeat(facts, attainable, traffic))
    times = [each.time for each in traffic.observations if each.time is not None]
    return _finished(
        Diagnosis(
            verdict="",
            num_requests=len(traffic.observations),
            num_prompt_tokens=facts.total,
            seconds=max(times) - min(times) if times else None,
            page_size=traffic.page_size,
            hit_rate=None if num_hits is None else num_hits / max(1, facts.total),
            is_measured=facts.is_measured,
            ceiling=ceiling / max(1, facts.total),
            of_ceiling=None if num_hits is None or not ceiling else num_hits / ceiling,
            attainable=attainable / max(1, facts.total),
            losses=ranked(losses),
            tiers=tuple(gains),
            num_earlier_tokens=traffic.num_earlier_tokens,
        )
    )


def num_cached(report: PrefixReport) -> int:
    """Tokens that came from some tier."""
    sources = report.num_tokens_by_source
    return sources.get("device", 0) + sources.get("host", 0) + sources.get("storage", 0)


def _finished(diagnosis: Diagnosis) -> Diagnosis:
    return structs.replace(diagnosis, verdict=verdict(diagnosis))


def _empty(traffic: Traffic) -> Diagnosis:
    return Diagnosis(
        verdict="",
        num_requests=0,
        num_prompt_tokens=0,
        seconds=None,
        page_size=traffic.page_size,
        hit_rate=None,
        is_measured=False,
        ceiling=None,
        of_ceiling=None,
        attainable=None,
        losses=(),
        tiers=(),
        num_earlier_tokens=traffic.num_earlier_tokens,
    )


def _distances(facts: _Facts) -> list[ReuseDistances]:
    """For each worker, whose cache is its own."""
    by_worker: dict[str, list[int]] = {}
    for number, observation in enumerate(facts.observations):
        by_worker.setdefault(observation.worker or "", []).append(number)
    found = []
    for numbers in by_worker.values():
        keys = [facts.keys[number] for number in numbers]
        usable = num_usable_tokens(keys, facts.num_tokens[numbers], facts.page_size) // facts.page_size
        found.append(reuse_distances(keys, usable))
    return found


def _hits(distances: Sequence[ReuseDistances], num_pages: float) -> float:
    return sum(each.num_hits(num_pages) for each in distances)


def _num_hits(facts: _Facts, capacities: Capacities, distances: Sequence[ReuseDistances]) -> float | None:
    """Tokens that came from the cache, as counted or as replayed; None where neither can be."""
    if facts.is_measured:
        return sum(num_cached(each.report) for each in facts.observations if each.report is not None)
    size = capacities.largest
    return None if size is None else _hits(distances, size) * facts.page_size


def _gains(traffic: Traffic, distances: Sequence[ReuseDistances]) -> list[TierGain]:
    capacities = traffic.capacities
    sizes: list[tuple[Tier, int | None]] = [
        ("device", capacities.device_pages),
        ("host", capacities.host_pages),
        ("storage", capacities.storage_pages),
    ]
    is_endless = capacities.has_storage and capacities.storage_pages is None
    reach = float("inf") if is_endless else float(capacities.largest or 0)
    gains = []
    above = 0
    for tier, size in sizes:
        if size is None:
            continue
        extra = _hits(distances, max(reach, 2 * size)) - _hits(distances, reach)
        nearer = _hits(distances, min(reach, 2 * size)) - _hits(distances, max(size, above))
        gains.append(
            TierGain(
                tier=tier,
                num_pages=size,
                num_extra_tokens=round(extra * traffic.page_size),
                num_nearer_tokens=round(max(0.0, nearer) * traffic.page_size),
            )
        )
        above = max(above, size)
    return gains


def _capacity_losses(facts: _Facts, traffic: Traffic, num_hits: float | None, gains: Sequence[TierGain]) -> list[Loss]:
    if facts.is_measured:
        num_tokens, num_prompts, by_tier = evicted_tokens(facts.observations)
        tiers = ", ".join(f"{count:,} were last in the {tier} tier" for tier, count in by_tier.most_common())
        text = f"{num_tokens:,} tokens had been cached and had to go for others: {tiers}"
    elif num_hits is not None:
        by_worker = facts.usable_of(facts.keys_by([f"{each.worker}\0{each.cache_salt}" for each in facts.observations]))
        num_tokens, num_prompts = round(int(by_worker.sum()) - num_hits), 0
        size = traffic.capacities.largest or 0
        text = f"an LRU of {size * facts.page_size:,} tokens has forgotten {num_tokens:,} tokens when they come again"
    else:
        return []
    if num_tokens < facts.least_tokens:
        return []
    return [
        loss(
            "capacity",
            num_tokens,
            Evidence(text=text, num_prompts=num_prompts),
            seconds_per_token=traffic.seconds_per_token,
            is_measured=facts.is_measured,
            advice=capacity_advice(gains, num_tokens=num_tokens),
        )
    ]


def _spread_losses(facts: _Facts, traffic: Traffic) -> list[Loss]:
    losses = []
    salts = [each.cache_salt for each in facts.observations]
    without_salts = facts.keys if not any(salts) else facts.keys_by([""] * len(salts))
    if len(set(salts)) > 1:
        num_tokens = int((facts.usable_of(without_salts) - facts.usable).sum())
        spread = widest_spread(without_salts, salts)
        if num_tokens >= facts.least_tokens and spread is not None:
            text = (
                f"a prefix of {spread.num_pages * facts.page_size:,} tokens is cached under {spread.num_owners:,} of "
                f"{spread.num_all_owners:,} salts"
            )
            evidence = Evidence(text=text, num_prompts=spread.num_prompts)
            losses.append(loss("salts", num_tokens, evidence, seconds_per_token=traffic.seconds_per_token))
    workers = [each.worker or "" for each in facts.observations]
    if len(set(workers)) > 1:
        own = facts.usable_of(facts.keys_by([f"{worker}\0{salt}" for worker, salt in zip(workers, salts, strict=True)]))
        num_tokens = int((facts.usable - own).sum())
        spread = widest_spread(facts.keys, workers)
        if num_tokens >= facts.least_tokens and spread is not None:
            text = (
                f"a prefix of {spread.num_pages * facts.page_size:,} tokens is on {spread.num_owners:,} of "
                f"{spread.num_all_owners:,} workers, each of which computed it"
            )
            evidence = Evidence(text=text, num_prompts=spread.num_prompts)
            losses.append(loss("routing", num_tokens, evidence, seconds_per_token=traffic.seconds_per_token))
    elif facts.is_measured and not traffic.num_earlier_tokens:
        losses += _from_elsewhere(facts, traffic)
    return losses


def _from_elsewhere(facts: _Facts, traffic: Traffic) -> list[Loss]:
    """What the store had although no prompt here had brought it: loaded, not computed, so no seconds of computing."""
    num_tokens = num_prompts = 0
    for observation, usable in zip(facts.observations, facts.usable, strict=True):
        assert observation.report is not None
        num_stored = observation.report.num_tokens_by_source.get("storage", 0)
        if not usable and num_stored:
            num_tokens, num_prompts = num_tokens + num_stored, num_prompts + 1
    if num_tokens < facts.least_tokens:
        return []
    text = (
        f"{num_tokens:,} tokens came from the store that no prompt had brought to this server: from another worker, or "
        "from before a restart"
    )
    return [
        loss(
            "routing",
            num_tokens,
            Evidence(text=text, num_prompts=num_prompts),
            seconds_per_token=None,
            is_measured=True,
        )
    ]


def _tail_losses(facts: _Facts, traffic: Traffic) -> list[Loss]:
    """What pages of one token would add."""
    if facts.page_size == 1 or not facts.total or facts.total > _MAX_TAIL_TOKENS:
        return []
    keys = facts.keys_by([each.cache_salt for each in facts.observations], block=1)
    tails = np.maximum(num_usable_tokens(keys, facts.num_tokens, 1) - facts.usable, 0)
    is_short = facts.num_tokens <= facts.page_size
    losses = []
    kinds: list[tuple[Cause, npt.NDArray[np.bool_]]] = [("too_short", is_short), ("page_tail", ~is_short)]
    for cause, where in kinds:
        num_tokens, num_prompts = int(tails[where].sum()), int((tails[where] > 0).sum())
        if num_tokens < max(facts.least_tokens, _LEAST_TAIL_SHARE * facts.total):
            continue
        if cause == "too_short":
            text = f"{num_prompts:,} prompts have no more tokens than a page of {facts.page_size}"
        else:
            text = (
                f"{num_tokens / num_prompts:.0f} tokens of a prompt that are known, on average, lie behind its last "
                f"whole page of {facts.page_size}"
            )
        evidence = Evidence(text=text, num_prompts=num_prompts)
        losses.append(
            loss(
                cause,
                num_tokens,
                evidence,
                seconds_per_token=traffic.seconds_per_token,
            )
        )
    return losses


def _does_not_repeat(facts: _Facts, attainable: int, traffic: Traffic) -> Loss:
    num_tokens = facts.total - attainable
    return loss(
        "does_not_repeat",
        num_tokens,
        Evidence(
            text=f"{num_tokens:,} of {facts.total:,} prompt tokens are the first of their kind; an infinite cache "
            f"would reach {attainable / max(1, facts.total):.1%}",
            num_prompts=len(facts.observations),
        ),
        seconds_per_token=traffic.seconds_per_token,
    )
