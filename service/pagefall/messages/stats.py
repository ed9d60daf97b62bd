"""Snapshots of the actors: what metrics and people look at."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.messages.explanations import MissReason


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """`free + leased + cached == total` always; `pinned` is the part of `cached` that live requests read."""

    total: int
    free: int
    leased: int
    cached: int
    pinned: int


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the scheduler, published after every step and when idle. Counters only rise."""

    num_running: int
    num_queued: int
    device_pages: PoolStats
    host_pages: PoolStats | None = None
    """None without a host tier."""
    num_steps: int = 0
    num_prompt_tokens: int = 0
    """Of the prompts that have their `PrefixReport`; so are the six below, and `num_missed_tokens`."""
    num_cached_tokens: int = 0
    num_device_tokens: int = 0
    num_host_tokens: int = 0
    num_storage_tokens: int = 0
    """The three add up to `num_cached_tokens`."""
    num_computed_tokens: int = 0
    num_unreached_tokens: int = 0
    """These two and `num_cached_tokens` add up to `num_prompt_tokens`."""
    num_known_tokens: int = 0
    """What a cache of unlimited size would have given: the ceiling of `num_cached_tokens`."""
    num_missed_tokens: dict[MissReason, int] = {}
    """They add up to `num_computed_tokens + num_unreached_tokens`."""
    saved_seconds: float = 0.0
    """Seconds of computing that the cache made unnecessary, as the cost model estimates them."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_evicted_pages: int = 0
    num_evicted_host_pages: int = 0
    num_lookups: int = 0
    num_fetched_pages: int = 0
    num_overtaken_pages: int = 0
    """Asked of the store, but computed before they came."""
    num_declined_fetches: int = 0
    """Fetches that would have taken far longer than computing."""
    num_skipped_offloads: int = 0
    num_skipped_backups: int = 0
    num_conservation_breaches: int = 0
    plan_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """What moved in one direction. `seconds` is the sum of the transfers' own times, though several may overlap."""

    num_pages: int = 0
    num_bytes: int = 0
    num_transfers: int = 0
    seconds: float = 0.0


Direction = Literal["device_to_host", "host_to_device", "host_to_storage", "storage_to_host"]
BreakerState = Literal["closed", "open", "half_open"]


class ControllerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the cache controller. `num_storage_outcomes` counts pages read by `FetchOutcome`, `corrupt` ones
    as `corrupt:<reason>`; `num_storage_failures` operations by "timeout", "error" and "full".
    """

    transfers: dict[Direction, TransferStats] = {}
    num_storage_outcomes: dict[str, int] = {}
    num_storage_failures: dict[str, int] = {}
    breaker: BreakerState | None = None
    storage_backend: str | None = None
    """The name of the store's backend."""
    storage_description: str | None = None
    """One line for people, without secrets. These three are None without a store."""
    storage_identity: str | None = None
    """The same for servers that share their store; None where it cannot tell, too."""
    storage_num_pages: int | None = None
    storage_used_bytes: int | None = None
    """How much is in the store, as it last told, and how many pages of this model that would be: it may hold those of
    others too. Both None without a store, and until it has told.
    """
    storage_limit_bytes: int | None = None
    """How much it may hold; None where it has no limit that it knows of, too."""
