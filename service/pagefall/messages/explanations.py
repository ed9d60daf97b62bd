"""Where a prompt's tokens came from, and why the rest had to be computed: what the scheduler knows of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.messages.ids import RequestId, Tier

TokenSource = Literal["device", "host", "storage", "computed", "unreached"]
"""The tier that a prompt's token came from; `computed`, if from none; `unreached`, if the request ended before."""

MissReason = Literal[
    "never_seen",
    "diverged",
    "evicted",
    "other_salt",
    "other_namespace",
    "page_tail",
    "below_threshold",
    "slower_than_recompute",
    "timed_out",
    "store_down",
    "corrupt",
    "no_room",
    "copy_failed",
    "cache_disabled",
    "scored",
    "unreached",
]
"""Why a page of a prompt was not taken from the cache; one for every such page.

- `never_seen`: the known path ended before it: new text.
- `diverged`: where the known path went on, the prompt has other tokens. Said of all pages from there on.
- `evicted`: it was cached, and had to go.
- `other_salt`: cached under another `cache_salt`. For operators' eyes: to clients it is `never_seen`.
- `other_namespace`: the store has it from another model, or from the same with other settings.
- `page_tail`: the page with the prompt's last token, which is always computed.
- `below_threshold`: too few tokens to ask the store for them.
- `slower_than_recompute`: loading would have taken longer, or was overtaken by computing.
- `timed_out`: the store did not answer, or did not deliver, in time.
- `store_down`: the store failed, or was not asked because it had failed before.
- `corrupt`: the store's value was damaged or another page's.
- `no_room`: the host pool had no room to read it into.
- `copy_failed`: copying it to the device failed.
- `cache_disabled`: the server runs with --disable-radix-cache.
- `scored`: the request wants the log-probabilities of its prompt, for which that is computed anew.
- `unreached`: the request ended before it came to it.
"""

EvictionCause = Literal["pool_full", "flushed", "gone_from_store"]
"""`pool_full`: the tier needed the page for others. `gone_from_store`: the store said it had it, or had it when last
heard of, and does not have it now."""


class MissedPages(msgspec.Struct, frozen=True, kw_only=True):
    """A run of pages of one prompt that were not cached, all for one reason.

    `num_tokens` is `num_pages * page_size` except where it ends with the prompt. `evicted`: `tier` is the last tier
    that had them, `seconds_ago` counts from then to the request's start. `slower_than_recompute`: the estimates in
    seconds; None where it is not known. `store_down`, `timed_out` and `corrupt` may name the failure in `detail`.
    """

    reason: MissReason
    first_page: int
    num_pages: int
    num_tokens: int
    tier: Tier | None = None
    seconds_ago: float | None = None
    cause: EvictionCause | None = None
    load_seconds: float | None = None
    compute_seconds: float | None = None
    detail: str | None = None


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prompt left the nearest known path: the one that shares most tokens with it.

    `token_index` is the first token of the prompt that differs, or at which the path ends; `other_token_ids` is what
    the path has from `window_start` on (`window_start <= token_index`; it ends where the path ends, or after some 48
    tokens). `has_other`: whether the path goes on at `token_index`, which is a divergence; else it just ended.
    `is_cached`: whether the path is in a tier still, or only remembered. `other_request_id`: the last request known to
    have taken it, if that is known.
    """

    token_index: int
    has_other: bool
    is_cached: bool
    window_start: int
    other_token_ids: tuple[int, ...]
    other_request_id: RequestId | None = None


class PrefixReport(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's account, made when its first token is sampled, or when the request ends before that.

    `num_tokens_by_source` has every `TokenSource` and adds up to `num_prompt_tokens`. `misses` are in order and cover
    every page with a `computed` or `unreached` token once. `num_known_tokens`: what a cache of unlimited size would
    have given, as far back as the server remembers: at most all whole pages before the last token.
    `saved_seconds`: the estimate of computing what was cached; 0 where nothing was measured yet.
    """

    page_size: int
    num_prompt_tokens: int
    num_tokens_by_source: dict[TokenSource, int]
    num_known_tokens: int
    misses: tuple[MissedPages, ...]
    divergence: Divergence | None = None
    saved_seconds: float = 0.0
    queue_seconds: float = 0.0
    """From its arrival at the scheduler to its first start, or its end if it never started."""
