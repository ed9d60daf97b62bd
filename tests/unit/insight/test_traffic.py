from __future__ import annotations

import numpy as np

from pagefall.config import InsightConfig
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import RequestId, RequestOutput
from pagefall.text.requests import GenerateRequest, TextPrompt


def begin(traffic: TrafficLog, name: str, http_id: str | None) -> None:
    request = GenerateRequest(request_id=RequestId(name), prompt=TextPrompt("x"), http_request_id=http_id)
    traffic.begin(request, np.zeros(10, dtype=np.uint32), max_tokens=1, began_at=traffic.now())
    traffic.accept(RequestId(name))


def end(traffic: TrafficLog, name: str) -> None:
    traffic.push(RequestOutput(request_id=RequestId(name), token_ids=(), finish_reason="stop"))


def names(traffic: TrafficLog, http_id: str) -> list[str]:
    return [record.request_id for record in traffic.of_http_request(http_id)]


def test_an_x_request_id_leads_to_all_of_its_prompts_while_they_are_remembered() -> None:
    traffic = TrafficLog(InsightConfig(explain_max_requests=2))
    for name in ("a-0", "a-1"):
        begin(traffic, name, "trace")
    begin(traffic, "b", None)
    assert names(traffic, "trace") == ["a-0", "a-1"]
    for name in ("a-0", "a-1", "b"):
        end(traffic, name)
    assert names(traffic, "trace") == ["a-1"]
    begin(traffic, "c", "other")
    end(traffic, "c")
    assert names(traffic, "trace") == []
    assert names(traffic, "other") == ["c"]
    assert set(traffic._by_http_id) == {"other"}


def test_of_a_request_that_was_turned_away_no_id_is_kept() -> None:
    traffic = TrafficLog(InsightConfig())
    begin(traffic, "a", "trace")
    traffic.reject(RequestId("a"), "queue_full")
    assert traffic._by_http_id == {}


def test_the_same_x_request_id_may_come_again() -> None:
    traffic = TrafficLog(InsightConfig(explain_max_tokens=25))
    for name in ("a", "b", "c"):
        begin(traffic, name, "same")
        end(traffic, name)
    assert names(traffic, "same") == ["b", "c"]
