from __future__ import annotations

from itertools import chain
from typing import Any

import anyio
import httpx
import pytest
from tests.unit.api.fake_engine import MODEL, WORDS, FakeEngine, listening, open_ai
from tests.unit.api.sse import events, parse

from pagefall.api.completions import LegacyLogprobWriter
from pagefall.text.requests import CandidateToken, TextLogprob, TextPrompt, TokenPrompt

pytestmark = pytest.mark.anyio

ANSWER = "".join(WORDS)


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": MODEL, "prompt": "Once", **fields})


async def test_a_whole_answer_has_openais_shape(client: httpx.AsyncClient) -> None:
    body = (await complete(client)).json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("created") > 1_700_000_000
    usage = body.pop("usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 6, 10)
    assert usage["prompt_tokens_details"]["cached_tokens_by_tier"] == {"device": 2, "host": 1, "storage": 0}
    assert body == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}],
    }


async def test_an_answer_that_was_given_up_is_no_answer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.finish_reason = "abort"
    whole, streamed = await complete(client), await complete(client, stream=True)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "aborted")
    *_, last, end = streamed.text.split("\n\n")
    assert end == ""
    assert parse(last)["error"]["code"] == "aborted"
    assert '"finish_reason":"abort"' not in streamed.text


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("Once", [TextPrompt("Once")]),
        (["Once", "Twice"], [TextPrompt("Once"), TextPrompt("Twice")]),
        ([1, 2, 3], [TokenPrompt((1, 2, 3))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
    ],
)
async def test_a_prompt_has_four_forms(
    client: httpx.AsyncClient, engine: FakeEngine, sent: object, prompts: list[object]
) -> None:
    body = (await complete(client, prompt=sent)).json()
    assert [request.prompt for request in engine.requests] == prompts
    assert len({request.request_id for request in engine.requests}) == len(prompts)
    assert [choice["index"] for choice in body["choices"]] == list(range(len(prompts)))
    assert body["usage"]["completion_tokens"] == 6 * len(prompts)


async def test_at_most_sixteen_tokens_are_made_unless_asked(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client)
    await complete(client, max_tokens=None)
    await complete(client, max_tokens=100)
    assert [request.max_tokens for request in engine.requests] == [16, 16, 100]


async def test_several_prompts_stream_interleaved(client: httpx.AsyncClient) -> None:
    fields = {"prompt": ["Once", "Twice"], "logprobs": 1}
    whole = (await complete(client, **fields)).json()
    *chunks, last = events(await complete(client, stream=True, stream_options={"include_usage": True}, **fields))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["index"] for choice in choices[:4]] == [0, 1, 0, 1]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        expected = whole["choices"][index]
        assert "".join(choice["text"] for choice in own) == expected["text"]
        assert own[-1]["finish_reason"] == expected["finish_reason"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert list(chain.from_iterable(choice["logprobs"][name] for choice in own)) == expected["logprobs"][name]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_legacy_logprobs_count_characters_of_the_text(client: httpx.AsyncClient) -> None:
    logprobs = (await complete(client, logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [*WORDS[:-1], "</s>"]
    assert logprobs["text_offset"] == [0, 5, 11, 13, 15, 17]
    assert all(ANSWER[o:].startswith(w) for w, o in zip(WORDS, logprobs["text_offset"], strict=True))
    assert logprobs["token_logprobs"] == [-0.5, -0.5, -0.5, -0.5, -9999.0, -0.5]
    assert logprobs["top_logprobs"][0] == {"top1": -1.0, "Hello": -0.5}


async def test_half_characters_and_special_tokens_do_not_shift_the_count() -> None:
    pieces = [b"a", "안".encode()[:1], "안".encode()[1:], b"</s>", b"b"]
    tokens = [
        TextLogprob(CandidateToken(i, repr(piece), piece, -1.0), special=piece == b"</s>")
        for i, piece in enumerate(pieces)
    ]
    writer = LegacyLogprobWriter(top=False)
    offsets = [writer.write(part).text_offset for part in (tokens[:2], tokens[2:])]
    assert offsets == [[0, 1], [1, 2, 2]]


async def test_no_top_logprobs_are_sent_when_none_are_asked_for(client: httpx.AsyncClient) -> None:
    logprobs = (await complete(client, logprobs=0)).json()["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] is None
    assert len(logprobs["tokens"]) == 6


async def test_all_prompts_are_submitted_before_the_first_is_accepted(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.accepts_together = 3
    with anyio.fail_after(5):
        body = (await complete(client, prompt=["a", "b", "c"])).json()
    assert [request.prompt for request in engine.requests] == [TextPrompt("a"), TextPrompt("b"), TextPrompt("c")]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]


async def test_when_one_of_several_prompts_is_refused_none_is_answered(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    response = await complete(client, prompt=["ok", "x" * 2000, "ok"], stream=True)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    first, _, third = engine.requests
    assert sorted(engine.aborted) == sorted([first.request_id, third.request_id])


async def test_when_one_of_several_prompts_is_refused_those_not_yet_accepted_are_withdrawn(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.accepts_together = 4
    with anyio.fail_after(5):
        response = await complete(client, prompt=["ok", "x" * 2000, "ok"])
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert (engine.withdrawn, engine.aborted) == (2, [])


async def test_openais_own_client_reads_answers_and_streams(engine: FakeEngine) -> None:
    async with listening(engine) as (host, port), open_ai(host, port) as client:
        answer = await client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=2)
        assert [choice.text for choice in answer.choices] == [ANSWER, ANSWER]
        stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == ANSWER
