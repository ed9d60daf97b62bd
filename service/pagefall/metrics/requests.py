"""Requests as their clients saw them: how many, how they ended, and how long they took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pagefall.insight.records import PrefixSource, RefusalReason, RequestRecord
from pagefall.metrics import families
from pagefall.metrics.histogram import Histogram

Outcome = Literal["stop", "length", "abort_client_gone", "abort_shutdown"]

# A hit on a GPU answers in tens of milliseconds, a long prompt computed on a CPU in a minute. The steps are finest from
# 0.1 to 10 s, where hits part from misses and where people set their limits.
_TTFT_BOUNDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75),
    *(1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0),
)

# One step of a small model on a GPU takes a few milliseconds, with a chunk of prefill in it a few hundred; a CPU is ten
# times slower. Seconds mean that a request was preempted or the loop stood still.
_ITL_BOUNDS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0),
)

# From an answer of one word to a long one on a CPU.
_REQUEST_BOUNDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# A request that finds room starts with the next step; one that does not waits for an answer to end.
_QUEUE_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class RequestMetrics(Collector):
    """A `TrafficObserver` that counts what it hears of. Read on the same loop."""

    def __init__(self) -> None:
        self.num_ended: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self.num_refused: dict[RefusalReason, int] = dict.fromkeys(get_args(RefusalReason), 0)
        self.time_to_first_token = _by_source(_TTFT_BOUNDS)
        self.inter_token_latency = _by_source(_ITL_BOUNDS)
        self.request_seconds = _by_source(_REQUEST_BOUNDS)
        self.queue_seconds = Histogram(_QUEUE_BOUNDS)

    def refused(self, reason: RefusalReason) -> None:
        self.num_refused[reason] += 1

    def accepted(self, record: RequestRecord) -> None:
        """It is counted when it ends."""

    def settled(self, record: RequestRecord) -> None:
        if record.report is not None:
            self.queue_seconds.observe(record.report.queue_seconds)

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None:
        """Tokens that came together share the time that they took together."""
        if gap_seconds is not None:
            self.inter_token_latency[record.source].observe(gap_seconds / num_tokens, num_tokens)
        elif record.ttft_seconds is not None:
            self.time_to_first_token[record.source].observe(record.ttft_seconds)

    def ended(self, record: RequestRecord) -> None:
        """How long an aborted request took says when its client lost patience, not how long an answer takes: it is
        counted, and not timed.
        """
        outcome = _outcome(record)
        self.num_ended[outcome] += 1
        if outcome in ("stop", "length") and record.total_seconds is not None:
            self.request_seconds[record.source].observe(record.total_seconds)

    def collect(self) -> Iterator[Metric]:
        yield families.counters("requests", "Requests that ended, by how", "outcome", self.num_ended)
        yield families.counters("refused_requests", "Requests turned away, by why", "reason", self.num_refused)
        yield families.histograms(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token, by the farthest tier that its prompt's head came from",
            "source",
            self.time_to_first_token,
        )
        yield families.histograms(
            "inter_token_latency_seconds", "Between a request's tokens", "source", self.inter_token_latency
        )
        yield families.histograms(
            "request_seconds",
            "From a request's arrival to its end, of those that were not aborted",
            "source",
            self.request_seconds,
        )
        yield families.histogram(
            "queue_seconds", "From a request's arrival at the scheduler to its start", self.queue_seconds
        )


def _by_source(bounds: tuple[float, ...]) -> dict[PrefixSource, Histogram]:
    return {source: Histogram(bounds) for source in get_args(PrefixSource)}


def _outcome(record: RequestRecord) -> Outcome:
    match record.finish_reason:
        case "stop":
            return "stop"
        case "length":
            return "length"
        case _:
            return "abort_shutdown" if record.abort_reason == "shutdown" else "abort_client_gone"
