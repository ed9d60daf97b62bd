"""Why a request got what it got from the lower tiers: the decision, with its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pagefall.messages import FetchOutcome, StorageAnswer

Decision = Literal["not_asked", "recompute", "load", "two_ended"]


@dataclass(slots=True)
class CacheTrace:
    """`storage_answer` None: the store was not asked, or has not answered. Seconds are the cost model's estimates when
    it decided, for the `num_present_pages` that the store said it had; None where it had nothing to go by.
    """

    decision: Decision = "not_asked"
    storage_answer: StorageAnswer | None = None
    num_present_pages: int = 0
    load_seconds: float | None = None
    compute_seconds: float | None = None
    num_outcomes: dict[FetchOutcome, int] = field(default_factory=dict)

    def count_outcome(self, outcome: FetchOutcome) -> None:
        self.num_outcomes[outcome] = self.num_outcomes.get(outcome, 0) + 1
