from __future__ import annotations

from typing import get_args

import pytest
from tests.unit.metrics.records import record, report

from pagefall.insight.records import AbortReason, PrefixSource, RefusalReason
from pagefall.messages import FinishReason
from pagefall.metrics.requests import Outcome, RequestMetrics


@pytest.fixture
def requests() -> RequestMetrics:
    return RequestMetrics()


@pytest.mark.parametrize("reason", get_args(RefusalReason))
def test_a_refusal_counts_under_its_reason(requests: RequestMetrics, reason: RefusalReason) -> None:
    requests.refused(reason)
    assert {name for name, number in requests.num_refused.items() if number} == {reason}
    assert not any(requests.num_ended.values())


@pytest.mark.parametrize(
    ("sources", "source"),
    [
        ({"computed": 9}, "none"),
        ({"device": 4, "computed": 5}, "device"),
        ({"device": 4, "host": 4, "computed": 1}, "host"),
        ({"device": 4, "storage": 4, "computed": 1}, "storage"),
    ],
)
def test_times_are_kept_apart_by_the_farthest_tier(
    requests: RequestMetrics, sources: dict[str, int], source: PrefixSource
) -> None:
    request = record(report(**sources), began_at=1.0, first_token_at=1.5, ended_at=4.0, finish_reason="stop")
    requests.progressed(request, 1, None)
    requests.progressed(request, 1, 0.25)
    requests.ended(request)
    for histograms, seconds in (
        (requests.time_to_first_token, 0.5),
        (requests.inter_token_latency, 0.25),
        (requests.request_seconds, 3.0),
    ):
        assert {name: values.count for name, values in histograms.items() if values.count} == {source: 1}
        assert histograms[source].sum == seconds


def test_tokens_that_come_together_share_their_time(requests: RequestMetrics) -> None:
    requests.progressed(record(report(computed=1), first_token_at=0.0), 4, 0.4)
    latency = requests.inter_token_latency["none"]
    assert latency.count == 4
    assert latency.sum == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("finish_reason", "abort_reason", "outcome"),
    [
        ("stop", None, "stop"),
        ("length", None, "length"),
        ("abort", "client_gone", "abort_client_gone"),
        ("abort", "shutdown", "abort_shutdown"),
    ],
)
def test_each_end_counts_once_and_aborts_are_not_timed(
    requests: RequestMetrics, finish_reason: FinishReason, abort_reason: AbortReason | None, outcome: Outcome
) -> None:
    request = record(report(computed=1), ended_at=2.0, finish_reason=finish_reason)
    request.abort_reason = abort_reason
    requests.ended(request)
    assert {name: number for name, number in requests.num_ended.items() if number} == {outcome: 1}
    assert requests.request_seconds["none"].count == (abort_reason is None)


def test_the_time_in_the_queue_is_that_of_the_account(requests: RequestMetrics) -> None:
    requests.settled(record(report(computed=1, queue_seconds=2.0)))
    assert (requests.queue_seconds.count, requests.queue_seconds.sum) == (1, 2.0)
