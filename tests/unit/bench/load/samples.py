"""Made-up samples."""

from __future__ import annotations

from typing import Any

from pagefall.bench.load.samples import Fault, RequestSample, Run

REFUSED = Fault(kind="status", status=503, message="status 503: too many requests")


def sample(**changes: Any) -> RequestSample:
    """An answered request of 100 prompt tokens, sent at 1 s: first token after 0.2 s, two more, 0.1 s apart."""
    fields: dict[str, Any] = {
        "part": "later",
        "is_measured": True,
        "due_at": None,
        "sent_at": 1.0,
        "ended_at": 1.4,
        "ttft_seconds": 0.2,
        "gaps_seconds": (0.1, 0.1),
        "num_prompt_tokens": 100,
        "num_seen_tokens": 80,
        "num_output_tokens": 3,
        "cached_tokens": 64,
        "cached_tokens_by_tier": None,
        "fault": None,
    }
    return RequestSample(**(fields | changes))


def failed_sample(fault: Fault = REFUSED) -> RequestSample:
    return sample(ttft_seconds=None, gaps_seconds=(), num_output_tokens=0, cached_tokens=None, fault=fault)


def run(*samples: RequestSample, target: str = "self", repeat: int = 0, seconds: float = 2.0) -> Run:
    return Run(target=target, repeat=repeat, seconds=seconds, samples=samples)
