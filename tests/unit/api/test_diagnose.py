"""`GET /cache/diagnose`: over the traffic log, one at a time."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import httpx
import msgspec
import numpy as np
import pytest
from tests.unit.api.fake_engine import FakeEngine, http_client

from pagefall.api import diagnose as endpoint
from pagefall.config import HttpConfig, InsightConfig
from pagefall.insight.diagnosis.diagnose import diagnose
from pagefall.insight.diagnosis.observations import Traffic
from pagefall.insight.diagnosis.report import Diagnosis
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import PrefixReport, RequestId, RequestOutput
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest

pytestmark = pytest.mark.anyio

RULES = "Be kind and brief, and never promise what is not in these rules. " * 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(engine: FakeEngine, clock: Clock) -> TrafficLog:
    """The engine's."""
    engine.traffic = TrafficLog(InsightConfig(), clock=clock, unix_clock=clock)
    return engine.traffic


def serve(log: TrafficLog, number: int, *, ends: bool = True, is_settled: bool = True) -> None:
    """A request whose prompt has a counter at its head."""
    prompt = ChatPrompt(
        messages=(ChatMessage("system", f"Request {1000 + number}. {RULES}"), ChatMessage("user", f"question {number}"))
    )
    text = "".join(message.content for message in prompt.messages)
    token_ids = np.array([ord(character) for character in text[: len(text) // 4 * 4]], dtype=np.uint32)[::4].copy()
    request_id = RequestId(f"r{number}")
    log.begin(GenerateRequest(request_id=request_id, prompt=prompt), token_ids, max_tokens=1, began_at=log.now())
    log.accept(request_id)
    if is_settled:
        report = PrefixReport(
            page_size=16,
            num_prompt_tokens=len(token_ids),
            num_tokens_by_source={"device": 0, "host": 0, "storage": 0, "computed": len(token_ids), "unreached": 0},
            num_known_tokens=0,
            misses=(),
        )
        finish: dict[str, Any] = {"finish_reason": "stop"} if ends else {}
        log.push(RequestOutput(request_id=request_id, token_ids=(1,), prefix=report, **finish))


async def asked(client: httpx.AsyncClient, query: str = "") -> Diagnosis:
    response = await client.get(f"/cache/diagnose{query}")
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=Diagnosis)


async def test_the_log_is_diagnosed(client: httpx.AsyncClient, log: TrafficLog) -> None:
    for number in range(20):
        serve(log, number)
    diagnosis = await asked(client)
    assert diagnosis.num_requests == 20
    assert (diagnosis.hit_rate, diagnosis.is_measured) == (0, True)
    [loss] = diagnosis.losses
    assert loss.cause == "volatile_text"
    assert loss.evidence.place is not None
    assert loss.evidence.place.char_offset == len("Request ")
    assert loss.evidence.examples[0] == "1000"


async def test_live_requests_count_once_their_prompt_is_settled(client: httpx.AsyncClient, log: TrafficLog) -> None:
    serve(log, 0)
    serve(log, 1, ends=False)
    serve(log, 2, is_settled=False)
    assert (await asked(client)).num_requests == 2


@pytest.mark.parametrize(
    ("query", "num_requests"), [("last=3", 3), ("seconds=45", 4), ("seconds=45&last=2", 2), ("last=1000", 10)]
)
async def test_only_the_last_are_looked_at_if_asked(
    client: httpx.AsyncClient, log: TrafficLog, clock: Clock, query: str, num_requests: int
) -> None:
    for number in range(10):
        serve(log, number)
        clock.now += 10
    assert (await asked(client, f"?{query}")).num_requests == num_requests


async def test_a_server_without_traffic_says_so(client: httpx.AsyncClient, log: TrafficLog) -> None:
    diagnosis = await asked(client)
    assert (diagnosis.num_requests, diagnosis.verdict) == (0, "There are no requests to look at.")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("last=0", "last"),
        ("last=-1", "last"),
        ("last=x", "last"),
        ("last=", "last"),
        ("seconds=0", "seconds"),
        ("seconds=nan", "seconds"),
        ("seconds=inf", "seconds"),
        ("seconds=x", "seconds"),
        ("lats=5", "lats"),
    ],
)
async def test_a_parameter_that_cannot_be_used_is_named(client: httpx.AsyncClient, query: str, param: str) -> None:
    response = await client.get(f"/cache/diagnose?{query}")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert param in error["message"]


async def test_a_server_that_remembers_nothing_names_the_flag(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.traffic = TrafficLog(InsightConfig(explain_max_requests=0))
    response = await client.get("/cache/diagnose")
    assert response.status_code == 400
    assert "--explain-max-requests" in response.json()["error"]["message"]


async def test_a_second_one_meanwhile_is_refused_and_later_served(
    client: httpx.AsyncClient, log: TrafficLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(log, 0)
    begun, may_end = threading.Event(), threading.Event()

    def slow(traffic: Traffic, *, show_text: bool) -> Diagnosis:
        begun.set()
        assert may_end.wait(30)
        return diagnose(traffic, show_text=show_text)

    monkeypatch.setattr(endpoint, "diagnose", slow)
    async with anyio.create_task_group() as group:
        group.start_soon(asked, client)
        assert await anyio.to_thread.run_sync(begun.wait, 30)
        response = await client.get("/cache/diagnose")
        may_end.set()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "diagnosis_under_way")
    assert response.headers["retry-after"]
    assert (await asked(client)).num_requests == 1


async def test_who_asks_again_gets_the_latest_answer_until_there_is_more_to_say(
    client: httpx.AsyncClient, log: TrafficLog, clock: Clock
) -> None:
    async def again(after: float) -> tuple[int, float]:
        clock.now += after
        diagnosis = await asked(client)
        return diagnosis.num_requests, diagnosis.age_seconds

    serve(log, 0)
    assert await again(0) == (1, 0)
    assert await again(100) == (1, 100)  # nothing has happened since
    serve(log, 1)
    assert await again(0) == (2, 0)
    serve(log, 2)
    assert await again(4.5) == (2, 4.5)
    assert await again(0.5) == (3, 0)


async def test_other_requests_are_looked_at_a_while_later(
    client: httpx.AsyncClient, log: TrafficLog, clock: Clock
) -> None:
    for number in range(3):
        serve(log, number)
    assert (await asked(client)).num_requests == 3
    clock.now += 1.5
    response = await client.get("/cache/diagnose?last=2")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "diagnosis_too_soon")
    assert response.headers["retry-after"] == "4"
    clock.now += 4
    assert (await asked(client, "?last=2")).num_requests == 2


async def test_after_a_long_diagnosis_comes_a_long_pause(
    client: httpx.AsyncClient, log: TrafficLog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(traffic: Traffic, *, show_text: bool) -> Diagnosis:
        clock.now += 2
        return diagnose(traffic, show_text=show_text)

    monkeypatch.setattr(endpoint, "diagnose", slow)
    serve(log, 0)
    assert (await asked(client)).num_requests == 1
    serve(log, 1)
    clock.now += 19
    assert (await asked(client)).num_requests == 1
    clock.now += 1
    assert (await asked(client)).num_requests == 2


async def test_redacted_prompts_are_not_shown(engine: FakeEngine, log: TrafficLog) -> None:
    for number in range(20):
        serve(log, number)
    app = endpoint.Diagnose(engine, page_size=16, redact_prompts=True)
    shown = app._diagnose(list(log.ended()), engine.stats(), None)
    assert [loss.cause for loss in shown.losses] == ["volatile_text"]
    assert "1000" not in repr(shown.losses)


async def test_it_asks_for_the_key_where_there_is_one(engine: FakeEngine, log: TrafficLog) -> None:
    async with http_client(engine, HttpConfig(api_key="sk-client")) as client:
        assert (await client.get("/cache/diagnose")).status_code in (401, 403)
