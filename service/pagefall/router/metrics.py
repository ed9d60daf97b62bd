"""The router's metrics. Names, types and labels are a contract: docs/router.md has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, get_args

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pagefall import __version__
from pagefall.messages import BreakerState
from pagefall.metrics import families
from pagefall.metrics.histogram import Histogram
from pagefall.router.decisions import Attempt, Decision
from pagefall.router.gate import Gate, RefusalReason
from pagefall.router.subscriptions import Subscriptions
from pagefall.router.workers import Outcome, Worker, WorkerRegistry, WorkerState

DecisionReason = Literal["device", "host", "storage", "no_prefix"]
"""Which tier of the chosen worker was expected to have most of the prompt."""

# Reading, tokenising and choosing take a fraction of a millisecond, a long prompt tens of them.
_ROUTING_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_QUEUE_BOUNDS: Final = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TTFB_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0)


class RouterMetrics(Collector):
    """A `DecisionObserver`. Belongs to the loop's thread."""

    content_type: Final = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(
        self, registry: WorkerRegistry, gate: Gate, subscriptions: Subscriptions | None, *, policy: str
    ) -> None:
        """`subscriptions` None: no events are read."""
        self._workers = registry
        self._subscriptions = subscriptions
        self._gate = gate
        self._policy = policy
        self._num_retries: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self._num_refused: dict[RefusalReason, int] = dict.fromkeys(get_args(RefusalReason), 0)
        self._num_decisions: dict[DecisionReason, int] = dict.fromkeys(get_args(DecisionReason), 0)
        self._num_tokens = Counter[Literal["prompt", "expected", "cached"]]()
        self._routing_seconds = Histogram(_ROUTING_BOUNDS)
        self._queue_seconds = Histogram(_QUEUE_BOUNDS)
        self._ttfb_seconds = Histogram(_TTFB_BOUNDS)
        self._collectors = CollectorRegistry()
        self._collectors.register(self)

    def render(self) -> bytes:
        return generate_latest(self._collectors)

    def retried(self, reason: Outcome) -> None:
        self._num_retries[reason] += 1

    def ended(self, decision: Decision) -> None:
        for reason in get_args(RefusalReason):
            if decision.refusal == reason:
                self._num_refused[reason] += 1
        if not decision.attempts:
            return
        self._routing_seconds.observe(decision.routing_seconds)
        self._queue_seconds.observe(decision.queue_seconds)
        for attempt in decision.attempts:
            self._num_decisions[_reason(attempt)] += 1
        if decision.ttft_seconds is not None:
            self._ttfb_seconds.observe(decision.ttft_seconds)
        if decision.num_cached_tokens is not None:
            self._num_tokens["prompt"] += decision.num_prompt_tokens
            self._num_tokens["expected"] += decision.num_expected_cached_tokens
            self._num_tokens["cached"] += decision.num_cached_tokens

    def collect(self) -> Iterator[Metric]:
        workers = self._workers.workers
        yield families.gauges(
            "router_info", "1; what runs, and by which policy", ("version", "policy"), {(__version__, self._policy): 1}
        )
        yield _requests(workers)
        yield families.counters(
            "router_retries", "Requests sent to another worker, by why", "reason", self._num_retries
        )
        yield families.counters(
            "router_refused_requests", "Requests that no worker was asked, by why", "reason", self._num_refused
        )
        yield families.counters(
            "router_decisions",
            "Workers chosen, by the tier that was expected to have most of the prompt",
            "reason",
            self._num_decisions,
        )
        yield families.gauge("router_running_requests", "Requests that were let in", self._gate.num_inside)
        yield families.gauge("router_queued_requests", "Requests that wait to be let in", self._gate.num_waiting)
        yield _by_state("router_worker_state", "1 for the state that a worker is in", WorkerState, workers, _state)
        yield _by_state(
            "router_breaker_state", "1 for the state that its breaker is in", BreakerState, workers, _breaker
        )
        yield _counters("router_breaker_openings", "Times that it opened", workers, lambda w: w.breaker.num_openings)
        yield _gauges("router_outstanding_requests", "Requests that a worker has", workers, lambda w: len(w.leases))
        yield _gauges(
            "router_outstanding_prefill_tokens",
            "Prompt tokens that a worker is expected to compute before what comes next",
            workers,
            lambda w: w.num_prefill_tokens,
        )
        if (subscriptions := self._subscriptions) is not None:
            yield _gauges(
                "router_events_connected",
                "1 while a worker's KV events are read",
                workers,
                partial(_is_connected, subscriptions),
            )
        yield families.histogram(
            "router_routing_seconds", "Reading, tokenising and choosing, of each request", self._routing_seconds
        )
        yield families.histogram("router_queue_seconds", "Waiting to be let in", self._queue_seconds)
        yield families.histogram(
            "router_time_to_first_byte_seconds",
            "From a request's arrival to the first bytes of its answer",
            self._ttfb_seconds,
        )
        for name, documentation in (
            ("prompt", "Prompt tokens of answers that said how many were cached"),
            ("expected", "How many of these the router expected to be cached"),
            ("cached", "How many of these were"),
        ):
            yield families.counter(f"router_{_TOKEN_NAMES[name]}", documentation, self._num_tokens[name])  # type: ignore[index]


_TOKEN_NAMES: Final = {
    "prompt": "prompt_tokens",
    "expected": "expected_cached_tokens",
    "cached": "cached_tokens",
}


def _reason(attempt: Attempt) -> DecisionReason:
    found: tuple[tuple[int, DecisionReason], ...] = (
        (attempt.num_device_tokens, "device"),
        (attempt.num_host_tokens, "host"),
        (attempt.num_storage_tokens, "storage"),
    )
    most, reason = max(found, key=lambda entry: entry[0])
    return reason if most else "no_prefix"


def _requests(workers: Sequence[Worker]) -> Metric:
    family = CounterMetricFamily(
        "pagefall_router_requests", "Requests sent to a worker, by how they ended", labels=["worker", "outcome"]
    )
    for worker in workers:
        for outcome in get_args(Outcome):
            family.add_metric([worker.name, outcome], worker.num_ended[outcome])
    return family


def _state(worker: Worker) -> str:
    return worker.state


def _breaker(worker: Worker) -> str:
    return worker.breaker.state


def _is_connected(subscriptions: Subscriptions, worker: Worker) -> float:
    state = subscriptions.state_of(worker.worker_id)
    return float(state is not None and state.is_connected)


def _by_state(
    name: str, documentation: str, states: object, workers: Sequence[Worker], state_of: Callable[[Worker], str]
) -> Metric:
    values: Mapping[tuple[str, str], float] = {
        (worker.name, state): float(state == state_of(worker)) for worker in workers for state in get_args(states)
    }
    return families.gauges(name, documentation, ("worker", "state"), values)


def _gauges(name: str, documentation: str, workers: Sequence[Worker], value_of: Callable[[Worker], float]) -> Metric:
    return families.gauges(name, documentation, ("worker",), {(worker.name,): value_of(worker) for worker in workers})


def _counters(name: str, documentation: str, workers: Sequence[Worker], value_of: Callable[[Worker], float]) -> Metric:
    return families.counters(name, documentation, "worker", {worker.name: value_of(worker) for worker in workers})
