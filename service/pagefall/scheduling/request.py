"""A request and its phases: `Waiting`, then `Prefilling`, then `Decoding`; preemption leads back to `Waiting`.

The phase is the type. What outlives a phase, the tokens, is the `Request` that all three carry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagefall.cache.lease import Lease
from pagefall.messages import (
    FinishReason,
    PrefixReport,
    RequestId,
    RequestOutput,
    ScoredTokens,
    Submit,
    Tier,
    TokenIds,
    TokenLogprob,
)
from pagefall.scheduling.arrivals import Arrivals
from pagefall.scheduling.trace import CachedSpan, CacheTrace


class Request:
    """What was asked for, and the tokens so far: the prompt and the answer behind it."""

    __slots__ = (
        "_buffer",
        "_cached_tokens_by_tier",
        "_scores",
        "arrived_at",
        "began_at",
        "has_begun",
        "is_settled",
        "num_preemptions",
        "num_reached",
        "num_tokens",
        "root",
        "seniority",
        "submit",
        "trace",
    )

    def __init__(self, submit: Submit, *, root: bytes, arrival: int, arrived_at: float) -> None:
        """`root` is the `root_key` of its pages, `arrival` its number among all requests."""
        self.submit = submit
        self.root = root
        self.seniority = (-submit.priority, arrival)
        """Unique; the smallest runs longest: higher priority, then earlier arrival."""
        self.num_tokens = len(submit.token_ids)
        self.num_preemptions = 0
        self.arrived_at = arrived_at
        self.has_begun = False
        """Whether it has ever started."""
        self.began_at = arrived_at
        """When it started for the first time."""
        self.num_reached = 0
        """How much of the prompt has been computed or taken from the cache; a preemption does not undo it."""
        self.is_settled = False
        """Whether its `PrefixReport` has been made."""
        self.trace = CacheTrace()
        self._cached_tokens_by_tier: dict[Tier, int] = {}
        self._buffer: TokenIds = submit.token_ids
        self._scores: list[TokenLogprob] = []

    @property
    def request_id(self) -> RequestId:
        return self.submit.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.submit.token_ids)

    @property
    def num_answer_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """How many tokens the answer may still get."""
        return self.submit.stop.max_tokens - self.num_answer_tokens

    @property
    def token_ids(self) -> TokenIds:
        """`[num_tokens]`, a view. It is never changed: new tokens are written behind its end."""
        return self._buffer[: self.num_tokens]

    @property
    def is_scored(self) -> bool:
        """Whether log-probabilities of its prompt are still wanted: then all of it is computed, cached or not."""
        return self.submit.wants_prompt_logprobs and len(self._scores) < self.num_prompt_tokens - 1

    @property
    def matchable_token_ids(self) -> TokenIds:
        """Those that may come from the cache, but for the last of them."""
        return self.token_ids[:1] if self.is_scored else self.token_ids

    @property
    def num_cached_tokens(self) -> int:
        """What the cache has given to the prompt when it was first computed."""
        return sum(self._cached_tokens_by_tier.values())

    def begin(self, *, now: float) -> None:
        """Records the first start, and makes room for the whole answer; a queued request has no such room yet."""
        self.has_begun = True
        self.began_at = now
        self._cached_tokens_by_tier = {"device": 0, "host": 0, "storage": 0}
        self._buffer = np.empty(self.num_prompt_tokens + self.submit.stop.max_tokens, dtype=np.uint32)
        self._buffer[: self.num_prompt_tokens] = self.submit.token_ids

    def reach(self, end: int, tier: Tier | None = None, start: int = 0) -> None:
        """Positions `[start, end)` are there now: from a `tier`, or computed. In the order of the positions.

        Only the prompt counts, and what was reached before counts as it did then.
        """
        end, first = min(end, self.num_prompt_tokens), max(start, self.num_reached)
        if end <= first:
            return
        if tier is not None:
            self._cached_tokens_by_tier[tier] += end - first
            self.trace.spans.append(CachedSpan(first, end, tier))
        self.num_reached = end

    def lose_partial_page(self, page_size: int) -> None:
        """It is preempted: of an unsettled prompt only whole pages stay computed."""
        if not self.is_settled:
            self.num_reached = self.num_reached // page_size * page_size

    def scored(self, start: int, end: int) -> ScoredTokens | None:
        """What is wanted of a step that computes positions `[start, end)`."""
        if not self.is_scored:
            return None
        wanted = self.submit.token_ids[start + 1 : end + 1]
        return ScoredTokens(token_ids=wanted, num_top_logprobs=self.submit.sampling.num_top_logprobs or 0)

    def add_scores(self, start: int, scores: tuple[TokenLogprob, ...]) -> None:
        """Of the tokens behind positions `start` and on. After a preemption some have been there before."""
        self._scores[start:] = scores

    def append(self, token_id: int) -> None:
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1

    def output(
        self, *sampled: TokenLogprob, finish_reason: FinishReason | None, prefix: PrefixReport | None = None
    ) -> RequestOutput:
        """What the request's owner hears: the tokens that are new, or that it ended without any."""
        return RequestOutput(
            request_id=self.request_id,
            token_ids=tuple(token.token_id for token in sampled),
            logprobs=() if self.submit.sampling.num_top_logprobs is None else sampled,
            finish_reason=finish_reason,
            cached_tokens=self.num_cached_tokens,
            cached_tokens_by_tier=self._cached_tokens_by_tier,
            prefix=prefix,
            prompt_logprobs=() if prefix is None or self.is_scored else tuple(self._scores),
        )


@dataclass(slots=True, eq=False)
class Prefilling:
    """Has the pages of all its tokens. Keys and values of the first `num_computed` are in them, and cached."""

    request: Request
    lease: Lease
    num_computed: int
    arrivals: Arrivals | None = None


@dataclass(slots=True, eq=False)
class Decoding:
    """Only its last token, sampled by the step before, has no keys and values yet."""

    request: Request
    lease: Lease

    @property
    def num_computed(self) -> int:
        return self.request.num_tokens - 1


Running = Prefilling | Decoding


class Awaited(NamedTuple):
    """A prefill under way that will have cached `num_tokens` of another request's prompt too."""

    prefill: Prefilling
    num_tokens: int


@dataclass(slots=True, eq=False)
class Waiting:
    """In the queue: new, or preempted (then it holds the tokens of its answer so far).

    `num_overtakes`: how many requests that stood behind it were started before it. `awaited`: it lets a prefill under
    way compute their common head. `matched_at` and `num_matched_tokens` remember a look into the cache (see `policy`).
    `has_made_room`: what it will evict was copied down for it, once.
    `arrivals`: what it asked of lower tiers, once it `has_asked` and there was something to ask.
    """

    request: Request
    num_overtakes: int = 0
    awaited: Awaited | None = None
    matched_at: int = -1
    num_matched_tokens: int = 0
    arrivals: Arrivals | None = None
    has_asked: bool = False
    has_made_room: bool = False
