"""What a request would wait for its first token at a worker, as far as the router knows.

    (prefill tokens ahead + tokens left to compute + load cost of host and storage hits) / prefill speed
    + running answers * seconds per output

The first sum is in tokens, those that are loaded in tokens of equivalent compute. The queue is a part of it, so a
worker that has a popular prefix gets no more of its requests than it can serve before another has computed the prefix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from pagefall.router.routing import WorkerView


class CostWeights(msgspec.Struct, frozen=True, kw_only=True):
    """`host_load` and `storage_load`: what loading a token costs, where computing it costs 1. The priors
    stand in for what was not measured yet. Costs that differ by less than the slack are equal.

    `displacement_weight`: computing a token in a full cache costs this much more, since it pushes out another that
    has to be computed again. Without it, prompts that are known nowhere fill the caches unevenly, and a short queue is
    enough to have a prefix computed twice. With four real workers and 64 prefixes, of which each holds a quarter, hits
    were 86% of the possible ones with 1, and 94% with 4, but then the busiest worker had 1.37 times the mean.

    `imbalance_weight`: where a cache is a whole prompt ahead of the emptiest, computing costs this much more. A prompt
    stays where it was first sent, so that the queues of one moment must not decide who is busy for hours.
    """

    host_load: float = 0.1
    storage_load: float = 0.3
    prior_prefill_tokens_per_second: float = 4000.0
    prior_seconds_per_output: float = 0.02
    slack_seconds: float = 0.002
    slack_fraction: float = 0.05
    displacement_weight: float = 3.0
    imbalance_weight: float = 4.0


class CacheLoad(msgspec.Struct, frozen=True):
    """How much a worker's cache holds: `fill`, 0 to 1, of what it can, or beside the fullest where that is not known.
    `num_tokens_ahead` of the emptiest, where the prompt has yet to find its place: no worker has as much as half of it.
    """

    fill: float = 0.0
    num_tokens_ahead: int = 0


class TokenHits(msgspec.Struct, frozen=True):
    """Of a prompt's leading tokens, how many are expected in each tier of a worker."""

    num_device: int = 0
    num_host: int = 0
    num_storage: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_device + self.num_host + self.num_storage


class Speeds(msgspec.Struct, frozen=True):
    prefill_tokens_per_second: float
    seconds_per_output: float


class Cost(msgspec.Struct, frozen=True):
    """`seconds` decide; they are the expected time to first token and what others lose by it."""

    ttft_seconds: float
    seconds: float


def fleet_speeds(workers: Sequence[WorkerView], weights: CostWeights) -> Speeds:
    """What is assumed of a worker that was not measured yet: the mean of those that were, else the priors."""
    prefill = _mean(worker.prefill_tokens_per_second for worker in workers)
    output = _mean(worker.seconds_per_output for worker in workers)
    return Speeds(prefill or weights.prior_prefill_tokens_per_second, output or weights.prior_seconds_per_output)


def request_cost(
    worker: WorkerView, hits: TokenHits, num_prompt_tokens: int, load: CacheLoad, fleet: Speeds, weights: CostWeights
) -> Cost:
    """`hits` and `load` are those of `worker`; `fleet` has its speeds where its own are not known."""
    left = num_prompt_tokens - hits.num_tokens
    work = left + hits.num_host * weights.host_load + hits.num_storage * weights.storage_load
    prefill = _measured(worker.prefill_tokens_per_second) or fleet.prefill_tokens_per_second
    output = _measured(worker.seconds_per_output) or fleet.seconds_per_output
    ttft_seconds = (worker.num_outstanding_prefill_tokens + work) / prefill + worker.num_outstanding * output
    imbalance = min(1.0, load.num_tokens_ahead / work) if work else 0.0
    displaced = weights.displacement_weight * load.fill + weights.imbalance_weight * imbalance
    return Cost(ttft_seconds, ttft_seconds + displaced * work / prefill)


def _measured(value: float | None) -> float | None:
    """None for what cannot be a measurement."""
    return value if value is not None and math.isfinite(value) and value > 0 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in map(_measured, values) if value is not None]
    return sum(known) / len(known) if known else None
