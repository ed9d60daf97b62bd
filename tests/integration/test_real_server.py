"""A newcomer's server: the embedded model behind the real command, asked by OpenAI's own client and by raw sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionUserMessageParam
from prometheus_client.parser import text_string_to_metric_families
from tests.real_server import RealServer, real_server

MODEL = "SmolLM2-135M-Instruct"
QUESTION = "Explain what a local AI server does in two sentences."
STORY = "Once upon a time there was a server that never forgot what it had read. " * 20
PAGE_SIZE = 16
CONTEXT_LENGTH = 4096


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """With the flags that SGLang's users check a connection with."""
    flags = ("--context-length", str(CONTEXT_LENGTH), "--max-running-requests", "1")
    with real_server(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def cold(server: RealServer) -> None:
    """Nothing is cached."""
    httpx.post(f"{server.url}/flush_cache").raise_for_status()


def user(text: str) -> ChatCompletionUserMessageParam:
    return {"role": "user", "content": text}


def ask(client: openai.OpenAI, text: str = QUESTION, *, max_tokens: int = 24) -> ChatCompletion:
    return client.chat.completions.create(
        model=MODEL, messages=[user(text)], max_tokens=max_tokens, temperature=0, logprobs=True, top_logprobs=3
    )


def cached_tokens(usage: CompletionUsage | None) -> int:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert usage.prompt_tokens_details.model_dump()["cached_tokens_by_tier"] == {
        "device": cached,
        "host": 0,
        "storage": 0,
    }
    return cached


def gauges(server: RealServer) -> dict[str, float]:
    """What must be back at its baseline when nobody is served."""
    text = httpx.get(f"{server.url}/metrics").raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {sample.name + sample.labels.get("state", ""): sample.value for sample in samples}
    return {
        "running": values["pagefall_num_running_reqs"],
        "queued": values["pagefall_num_queue_reqs"],
        "leased": values["pagefall_pagesleased"],
        "pinned": values["pagefall_pagespinned"],
        "unleased": values["pagefall_pagesfree"] + values["pagefall_pagescached"],
    }


def test_the_connection_check_answers_in_a_sentence_of_sense(server: RealServer) -> None:
    body = (
        f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"{QUESTION}"}}],"max_tokens":64,"temperature":0}}'
    )
    response = httpx.post(
        f"{server.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}, timeout=60
    )
    answer = response.raise_for_status().json()["choices"][0]["message"]["content"]
    assert "server" in answer
    assert len(answer.split()) > 10
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_the_log_says_what_is_served_and_ends_with_the_url(server: RealServer) -> None:
    log = server.log
    ready = log[log.index("ready\n") :].splitlines()
    names = [line.split()[0] for line in ready[1:7]]
    assert names == ["model", "files", "device", "pool", "context", "URL"]
    assert f"{CONTEXT_LENGTH:,} tokens in {CONTEXT_LENGTH // PAGE_SIZE} pages of {PAGE_SIZE}" in ready[4]
    assert ready[6].split() == ["URL", f"{server.url}/v1"]


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_streamed_chat_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0]
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[user(QUESTION)],
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *parts, last = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts][-1] == whole.finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 24


def test_a_streamed_completion_is_the_whole_one_in_pieces(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=STORY, max_tokens=16, temperature=0).choices[0]
    stream = client.completions.create(model=MODEL, prompt=STORY, max_tokens=16, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.text
    assert whole.text


def test_several_prompts_are_answered_as_each_would_be(client: openai.OpenAI) -> None:
    prompts = ["The capital of France is", "안녕하세요", "def add(a, b):"]
    together = client.completions.create(model=MODEL, prompt=prompts, max_tokens=8, temperature=0)
    alone = [client.completions.create(model=MODEL, prompt=p, max_tokens=8, temperature=0) for p in prompts]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert "Paris" in together.choices[0].text


def test_clients_that_come_at_once_are_served_one_after_the_other(client: openai.OpenAI) -> None:
    expected = ask(client, max_tokens=8).choices[0].message.content
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(client, max_tokens=8), range(8)))
    assert {answer.choices[0].message.content for answer in answers} == {expected}


@pytest.mark.usefixtures("cold")
def test_the_second_time_the_prompt_comes_from_the_cache(client: openai.OpenAI) -> None:
    first, second = ask(client, STORY), ask(client, STORY)
    assert first.usage is not None
    assert cached_tokens(first.usage) == 0
    assert cached_tokens(second.usage) == (first.usage.prompt_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    assert first.choices[0].message.content == second.choices[0].message.content


@pytest.mark.usefixtures("cold")
def test_the_next_turn_of_a_chat_finds_the_last_answer(client: openai.OpenAI) -> None:
    first = ask(client, STORY, max_tokens=64)
    assert first.usage is not None
    answer = first.choices[0].message.content
    assert answer
    second = client.chat.completions.create(
        model=MODEL,
        messages=[user(STORY), {"role": "assistant", "content": answer}, user("Go on.")],
        max_tokens=4,
        temperature=0,
    )
    assert cached_tokens(second.usage) > first.usage.prompt_tokens


@pytest.mark.usefixtures("cold")
def test_all_apis_read_one_cache_and_a_response_finds_the_answer_it_goes_on_from(
    server: RealServer, client: openai.OpenAI
) -> None:
    first = client.responses.create(model=MODEL, input=STORY, max_output_tokens=24, temperature=0)
    second = client.responses.create(
        model=MODEL, input="Go on.", previous_response_id=first.id, max_output_tokens=2, temperature=0
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0) as other:
        message = other.messages.create(model=MODEL, messages=[{"role": "user", "content": STORY}], max_tokens=2)
    pages = (first.usage.input_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    assert message.usage.cache_read_input_tokens == pages
    assert message.usage.input_tokens == first.usage.input_tokens - pages
    assert message.stop_reason == "max_tokens"


def test_a_flush_leaves_every_page_free(server: RealServer, client: openai.OpenAI) -> None:
    ask(client, max_tokens=4)
    assert httpx.post(f"{server.url}/flush_cache").json()["num_pages"]["device"] > 0
    assert httpx.post(f"{server.url}/flush_cache").json()["num_pages"] == {"device": 0, "host": 0}
    assert cached_tokens(ask(client, max_tokens=1).usage) == 0


def test_an_answer_ends_before_its_stop_string(client: openai.OpenAI) -> None:
    text = ask(client).choices[0].message.content
    assert text is not None
    stop = text[len(text) // 2 :][:5]
    stopped = client.chat.completions.create(
        model=MODEL, messages=[user(QUESTION)], max_tokens=24, temperature=0, stop=[stop, "never said"]
    ).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"


def test_logprobs_spell_the_answer_and_the_greedy_token_is_the_likeliest(client: openai.OpenAI) -> None:
    choice = ask(client).choices[0]
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert len(tokens) == 24
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == choice.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 3
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, token.top_logprobs[0].logprob)
        assert token.logprob <= 0


def test_a_seed_makes_an_answer_repeat(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> str:
        answer = client.completions.create(model=MODEL, prompt="My favourite", max_tokens=16, temperature=1, seed=seed)
        return answer.choices[0].text

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_the_tokenizer_counts_as_the_usage_does(server: RealServer, client: openai.OpenAI) -> None:
    counted = httpx.post(f"{server.url}/tokenize", json={"messages": [user(QUESTION)]}).json()
    usage = ask(client, max_tokens=1).usage
    assert usage is not None
    assert counted["count"] == usage.prompt_tokens
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": counted["tokens"]}).json()["text"]
    assert QUESTION in text


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 1000}, "n", "invalid_value"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
        ({"min_tokens": 5}, "min_tokens", "unsupported_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"max_tokens": 5000}, "messages", "context_length_exceeded"),
        ({"messages": [user("word " * 5000)]}, "messages", "context_length_exceeded"),
        ({"max_tokenz": 5}, "max_tokenz", "unknown_parameter"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    server: RealServer, fields: dict[str, object], param: str, code: str
) -> None:
    body = {"model": MODEL, "messages": [user("Hi")], **fields}
    for stream in (False, True):
        response = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"stream": stream}, timeout=30)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (400, param, code)
        assert param in error["message"]


def test_clients_that_connect_and_reset_leave_nothing_behind(server: RealServer) -> None:
    baseline = gauges(server)
    assert (baseline["running"], baseline["queued"], baseline["leased"], baseline["pinned"]) == (0, 0, 0, 0)
    for index in range(100):
        fields = {"model": MODEL, "prompt": f"{index} {STORY}", "max_tokens": 1000, "stream": index % 2 == 0}
        body = json.dumps(fields).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(head + body[: len(body) if index % 3 else len(body) // 2])
            if index % 10 == 0:
                time.sleep(0.05)  # far enough to be computed
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    deadline = time.monotonic() + 30
    while gauges(server) != baseline and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gauges(server) == baseline
    assert "Traceback" not in server.log


def test_ctrl_c_finishes_what_is_under_way_and_ends_with_status_zero(server: RealServer, client: openai.OpenAI) -> None:
    begun = threading.Event()

    def stream() -> list[str | None]:
        reasons: list[str | None] = []
        for chunk in client.completions.create(model=MODEL, prompt="One,", max_tokens=48, stream=True):
            begun.set()
            reasons.append(chunk.choices[0].finish_reason)
        return reasons

    with ThreadPoolExecutor(1) as pool:
        reasons = pool.submit(stream)
        assert begun.wait(timeout=30)
        server.interrupt()
        assert reasons.result(timeout=60)[-1] in ("length", "stop")
    assert server.wait() == 0
    log = server.log
    assert log.splitlines()[-1].endswith("stopped")
    assert "Traceback" not in log
    assert "Retrying" not in log, "the model hub was asked"
