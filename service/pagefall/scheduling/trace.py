"""What happened to a request on its way to its prompt's pages: the raw material of its `PrefixReport`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pagefall.cache.history import Evicted, Remembered
from pagefall.messages import Divergence, FetchOutcome, StorageAnswer, Tier

Decision = Literal["not_asked", "below_threshold", "recompute", "load", "two_ended"]


class Survey(NamedTuple):
    """What was known of a prompt's pages when the request first started.

    The first `num_tree_pages` were in a tier of the tree; page `num_tree_pages + i` had the fate `evicted[i]`; the rest
    was known to nobody, but for those below `num_elsewhere_pages`, which are cached under another root.
    `has_next`: whether the nearest known path goes on where the prompt left it.
    """

    num_tree_pages: int
    evicted: tuple[Evicted, ...]
    num_elsewhere_pages: int
    has_next: bool
    divergence: Divergence | None

    @property
    def num_known_pages(self) -> int:
        return self.num_tree_pages + len(self.evicted)


class CachedSpan(NamedTuple):
    """Positions `[start, end)` of the prompt came from `tier`."""

    start: int
    end: int
    tier: Tier


class Estimates(NamedTuple):
    """The cost model's seconds for some pages; None where it had nothing to go by."""

    load_seconds: float | None
    compute_seconds: float | None


_NO_ESTIMATES: Final = Estimates(None, None)


@dataclass(slots=True)
class CacheTrace:
    """`storage_answer` None: the store was not asked, or has not answered. It was asked for the pages from
    `first_asked_page` on, and said that it had `num_present_pages` of them. `outcomes`: what became of pages that were
    read. `declined_host_pages`: what the host had and was not loaded, since computing was quicker.
    `pages_without_room`: the store has them, and the host pool had no place to read them into.
    """

    decision: Decision = "not_asked"
    storage_answer: StorageAnswer | None = None
    first_asked_page: int | None = None
    num_present_pages: int = 0
    storage_estimates: Estimates = _NO_ESTIMATES
    can_overtake: bool = True
    """Whether what the store delivered late could still be used (policy `auto`)."""
    outcomes: dict[int, FetchOutcome] = field(default_factory=dict)
    declined_host_pages: range = range(0)
    host_estimates: Estimates = _NO_ESTIMATES
    failed_copies: set[int] = field(default_factory=set)
    pages_without_room: range = range(0)
    spans: list[CachedSpan] = field(default_factory=list)
    survey: Survey | None = None
    remembered: Remembered | None = None
