from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.unit.api.fake_engine import MODEL, FakeEngine, http_client

from pagefall.config import HttpConfig, InsightConfig
from pagefall.insight.explanation import Explanation
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import Divergence, FinishReason, MissedPages, PrefixReport, RequestId, RequestOutput
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, Prompt, TextPrompt

pytestmark = pytest.mark.anyio

TEXT = "system: It is 12:45.\nuser: Hi\nassistant: "
CHAT = ChatPrompt(messages=(ChatMessage("system", "It is 12:45."), ChatMessage("user", "Hi")))
DIVERGED = Divergence(
    token_index=18,
    has_other=True,
    is_cached=True,
    window_start=0,
    other_token_ids=tuple(b"system: It is 12:47.\n"),
    other_request_id=RequestId("chatcmpl-before"),
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def report(*misses: MissedPages, divergence: Divergence | None = None, **sources: int) -> PrefixReport:
    by_source = {"device": 0, "host": 0, "storage": 0, "computed": 0, "unreached": 0, **sources}
    return PrefixReport(
        page_size=16,
        num_prompt_tokens=sum(by_source.values()),
        num_tokens_by_source=msgspec.convert(by_source, dict[Any, int]),
        num_known_tokens=16,
        misses=misses,
        divergence=divergence,
    )


ACCOUNT = report(
    MissedPages(reason="diverged", first_page=1, num_pages=1, num_tokens=16),
    MissedPages(reason="page_tail", first_page=2, num_pages=1, num_tokens=9),
    divergence=DIVERGED,
    device=16,
    computed=25,
)


@pytest.fixture
def engine() -> FakeEngine:
    return remembering(InsightConfig())


def remembering(config: InsightConfig) -> FakeEngine:
    engine = FakeEngine()
    engine.traffic = TrafficLog(config, clock=Clock(), unix_clock=lambda: 1_700_000_000.0)
    return engine


def begin(engine: FakeEngine, name: str, *, prompt: Prompt = CHAT, http_id: str | None = None) -> None:
    token_ids = byte_tokenizer().encode(TEXT, add_special_tokens=False)
    assert token_ids.dtype == np.uint32
    request = GenerateRequest(request_id=RequestId(name), prompt=prompt, http_request_id=http_id)
    engine.traffic.begin(request, token_ids, max_tokens=4, began_at=engine.traffic.now())
    engine.traffic.accept(RequestId(name))


def settle(engine: FakeEngine, name: str, *, finish_reason: FinishReason | None = "stop") -> None:
    engine.traffic.push(
        RequestOutput(request_id=RequestId(name), token_ids=(7,), prefix=ACCOUNT, finish_reason=finish_reason)
    )


async def test_an_ended_request_is_explained_with_its_message_and_both_texts(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    begin(engine, "chatcmpl-1", http_id="trace-1")
    settle(engine, "chatcmpl-1")
    response = await client.get("/cache/explain/chatcmpl-1")
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    explained = msgspec.json.decode(response.content, type=Explanation)
    assert (explained.request_id, explained.http_request_id, explained.model) == ("chatcmpl-1", "trace-1", MODEL)
    assert (explained.state, explained.finish_reason) == ("ended", "stop")
    assert (explained.num_prompt_tokens, explained.num_cached_tokens, explained.num_known_tokens) == (41, 16, 16)
    found = explained.divergence
    assert found is not None
    assert (found.message_index, found.message_role, found.message_character) == (0, "system", 10)
    assert found.other_request_id == "chatcmpl-before"
    assert found.snippet is not None
    assert (found.snippet.before, found.snippet.other) == ("system: It is 12:4", "7.\n")
    assert [(miss.reason, miss.first_token, miss.num_tokens) for miss in explained.misses] == [
        ("diverged", 16, 16),
        ("page_tail", 32, 9),
    ]


async def test_a_request_that_lives_is_explained_too(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    begin(engine, "chatcmpl-1")
    body = (await client.get("/cache/explain/chatcmpl-1")).json()
    assert (body["state"], body["is_settled"], body["misses"], body["divergence"]) == ("queued", False, [], None)
    settle(engine, "chatcmpl-1", finish_reason=None)
    assert (await client.get("/cache/explain/chatcmpl-1")).json()["state"] == "running"


async def test_the_x_request_id_will_do(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    begin(engine, "chatcmpl-1", http_id="a/b:1")
    settle(engine, "chatcmpl-1")
    assert (await client.get("/cache/explain/a/b:1")).json()["request_id"] == "chatcmpl-1"


async def test_the_x_request_id_reaches_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 6}
    await client.post("/v1/completions", json=body, headers={"x-request-id": "trace-9"})
    assert [request.http_request_id for request in engine.requests] == ["trace-9", "trace-9"]
    response = await client.post("/v1/completions", json=body)
    assert {request.http_request_id for request in engine.requests[2:]} == {response.headers["x-request-id"]}


@pytest.mark.parametrize("wanted", ["cmpl-1", "trace-1"])
async def test_an_id_of_several_prompts_is_answered_with_theirs(
    client: httpx.AsyncClient, engine: FakeEngine, wanted: str
) -> None:
    for index in (1, 2):  # the first is forgotten
        begin(engine, f"cmpl-1-{index}", prompt=TextPrompt(TEXT), http_id="trace-1")
    response = await client.get(f"/cache/explain/{wanted}")
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (409, "ambiguous_request_id", "request_id")
    assert "cmpl-1-1, cmpl-1-2." in error["message"]
    assert (await client.get("/cache/explain/cmpl-1-2")).status_code == 200


async def test_an_unknown_request_is_a_404_that_says_what_is_known(client: httpx.AsyncClient) -> None:
    response = await client.get("/cache/explain/chatcmpl-nothing")
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (404, "not_found_error", "request_not_found")
    assert "last 4096 that ended" in error["message"]
    assert "/cache/requests" in error["message"]


async def test_where_nothing_is_remembered_the_error_names_the_flag() -> None:
    engine = remembering(InsightConfig(explain_max_requests=0))
    begin(engine, "chatcmpl-1", http_id="trace-1")
    settle(engine, "chatcmpl-1")
    async with http_client(engine) as client:
        for wanted in ("chatcmpl-1", "trace-1"):
            response = await client.get(f"/cache/explain/{wanted}")
            assert response.status_code == 404
            assert "start it with --explain-max-requests above 0" in response.json()["error"]["message"]


async def test_redacted_prompts_are_not_told() -> None:
    engine = remembering(InsightConfig(redact_prompts=True))
    begin(engine, "chatcmpl-1")
    settle(engine, "chatcmpl-1")
    async with http_client(engine) as client:
        response = await client.get("/cache/explain/chatcmpl-1")
    assert response.json()["divergence"]["snippet"] is None
    assert response.json()["divergence"]["message_character"] == 10
    assert "12:4" not in response.text


async def test_requests_are_listed_newest_first(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for name in ("one", "two", "three"):
        begin(engine, name, http_id=f"trace-{name}")
    settle(engine, "two")
    settle(engine, "one")
    body = (await client.get("/cache/requests")).json()
    assert [each["request_id"] for each in body["requests"]] == ["three", "two", "one"]
    assert body["num_remembered"] == 3
    three, two, _ = body["requests"]
    assert (two["state"], two["first_miss"], two["divergence_token_index"]) == ("ended", "diverged", 18)
    assert (two["num_cached_tokens"], two["num_tokens_by_source"]["computed"]) == (16, 25)
    assert (two["http_request_id"], two["ttft_seconds"] > 0) == ("trace-two", True)
    assert (three["state"], three["is_settled"], three["first_miss"]) == ("queued", False, None)
    ended = (await client.get("/cache/requests?state=ended&limit=1")).json()
    assert [each["request_id"] for each in ended["requests"]] == ["two"]
    live = (await client.get("/cache/requests?state=live")).json()
    assert [each["request_id"] for each in live["requests"]] == ["three"]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("limit=²", "limit"), ("limit=-1", "limit"),
     ("state=dead", "state"), ("sate=live", "sate")],
)  # fmt: skip
async def test_a_parameter_that_cannot_be_used_is_named(client: httpx.AsyncClient, query: str, param: str) -> None:
    response = await client.get(f"/cache/requests?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


PATHS = ["/cache/requests", "/cache/explain/chatcmpl-1", "/cache/stats"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("config", "key", "status"),
    [
        (HttpConfig(), None, 200),
        (HttpConfig(api_key="client"), None, 401),
        (HttpConfig(api_key="client"), "client", 200),
        (HttpConfig(api_key="client", admin_api_key="admin"), None, 401),
        (HttpConfig(api_key="client", admin_api_key="admin"), "client", 403),
        (HttpConfig(api_key="client", admin_api_key="admin"), "admin", 200),
        (HttpConfig(admin_api_key="admin"), None, 401),
        (HttpConfig(admin_api_key="admin"), "admin", 200),
    ],
)
async def test_who_may_look_into_the_cache(
    engine: FakeEngine, path: str, config: HttpConfig, key: str | None, status: int
) -> None:
    begin(engine, "chatcmpl-1")
    async with http_client(engine, config) as client:
        response = await client.get(path, headers={} if key is None else {"authorization": f"Bearer {key}"})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "admin_key_required"


BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
ASK = {"x-pagefall-explain": "1"}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_says_where_the_prompt_came_from(
    client: httpx.AsyncClient, engine: FakeEngine, stream: bool
) -> None:
    engine.reports = [ACCOUNT]
    response = await client.post("/v1/chat/completions", json=BODY | {"stream": stream}, headers=ASK)
    assert response.headers["x-pagefall-cache"] == "device=16, host=0, storage=0, computed=25, miss=diverged@16"
    if stream:
        assert response.headers["content-type"].startswith("text/event-stream")
        texts = [event.get("content") or "" for event in deltas_of(response)]
        assert "".join(texts) == "Hello there, 안녕 👋"
    else:
        assert response.json()["choices"][0]["message"]["content"] == "Hello there, 안녕 👋"


def deltas_of(response: httpx.Response) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [msgspec.json.decode(event)["choices"][0]["delta"] for event in events]


async def test_the_header_adds_up_all_prompts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    whole = report(device=32)
    cut = report(
        MissedPages(reason="evicted", first_page=2, num_pages=2, num_tokens=20), host=32, storage=4, unreached=16
    )
    for stream in (False, True):
        engine.reports = [whole, cut]
        body = {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 6, "stream": stream}
        response = await client.post("/v1/completions", json=body, headers=ASK)
        assert response.headers["x-pagefall-cache"] == (
            "device=32, host=32, storage=4, computed=0, unreached=16, miss=evicted@32"
        )


async def test_a_client_is_not_told_what_another_salt_has_cached(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.reports = [report(MissedPages(reason="other_salt", first_page=0, num_pages=1, num_tokens=16), computed=16)]
    response = await client.post("/v1/chat/completions", json=BODY, headers=ASK)
    assert response.headers["x-pagefall-cache"] == "device=0, host=0, storage=0, computed=16, miss=never_seen@0"


@pytest.mark.parametrize("headers", [{}, {"x-pagefall-explain": "0"}])
async def test_nobody_who_does_not_ask_gets_the_header(
    client: httpx.AsyncClient, engine: FakeEngine, headers: dict[str, str]
) -> None:
    engine.reports = [ACCOUNT]
    response = await client.post("/v1/chat/completions", json=BODY, headers=headers)
    assert "x-pagefall-cache" not in response.headers


async def test_a_header_that_is_neither_yes_nor_no_is_refused(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.post("/v1/chat/completions", json=BODY, headers={"x-pagefall-explain": "please"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-pagefall-explain")
    assert engine.requests == []


async def test_what_fails_before_the_first_token_has_its_status(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fault = ZeroDivisionError("bug")
    engine.num_deltas = 2  # the third fails
    response = await client.post("/v1/chat/completions", json=BODY | {"stream": True}, headers=ASK)
    assert response.status_code == 500
    assert engine.closed
