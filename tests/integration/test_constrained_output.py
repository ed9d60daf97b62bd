"""Constrained answers of real engines: JSON that validates, and greedy answers as plain masking gives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher
from tests.engine_rig import Setting, engine_for
from tests.random_schemas import breaches, random_schema
from tests.tiny_models import VOCAB_SIZE, make_tiny, make_tiny_tokenizer
from transformers import AutoModelForCausalLM

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.errors import RequestError
from pagefall.messages import RequestId, SamplingParams
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex
from pagefall.text.grammar import grammar_text
from pagefall.text.matchers import VocabularyFacts, allowed_tokens, load_vocabulary, make_matcher
from pagefall.text.requests import GenerateRequest, TextDelta, TokenPrompt
from pagefall.text.tokenizer import load_tokenizer

pytestmark = pytest.mark.anyio

EOS = 1
NUM_SCHEMAS = 40
MAX_NEW_GRAMMARS = 8
MAX_TOKENS = 300
SETTING = Setting(max_running=16, num_tokens=12_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(make_tiny("llama", tmp_path_factory.mktemp("tiny"), seed=3))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[TokenizerActor]:
    async with engine_for(folder, SETTING) as engine:
        yield engine


async def answer(
    engine: TokenizerActor,
    name: str,
    constraint: Constraint | None,
    *,
    sampling: SamplingParams = SamplingParams(temperature=0),  # noqa: B008 - frozen
    max_tokens: int = MAX_TOKENS,
    prompt: tuple[int, ...] = (5, 6, 7),
    stop: tuple[str, ...] = (),
    ignore_eos: bool = False,
) -> TextDelta:
    """All of it as one delta."""
    generation = await engine.generate(
        GenerateRequest(
            request_id=RequestId(name),
            prompt=TokenPrompt(prompt),
            sampling=sampling,
            max_tokens=max_tokens,
            constraint=constraint,
            stop=stop,
            ignore_eos=ignore_eos,
        )
    )
    deltas = [delta async for delta in generation]
    return TextDelta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        finish_reason=deltas[-1].finish_reason,
    )


async def test_every_completed_answer_validates_at_temperature_one(engine: TokenizerActor) -> None:
    schemas = [random_schema(seed) for seed in range(NUM_SCHEMAS)]
    places = asyncio.Semaphore(MAX_NEW_GRAMMARS)  # more new ones at once are told to come back later

    async def ask(seed: int, schema: dict[str, Any] | bool) -> TextDelta:
        async with places:
            sampling = SamplingParams(temperature=1.0, seed=seed)
            return await answer(engine, f"r{seed}", JsonSchema(schema=schema), sampling=sampling)

    answers = await asyncio.gather(*(ask(seed, schema) for seed, schema in enumerate(schemas)))
    completed = [
        (schema, whole) for schema, whole in zip(schemas, answers, strict=True) if whole.finish_reason == "stop"
    ]
    assert len(completed) >= NUM_SCHEMAS * 3 // 4
    assert {whole.finish_reason for whole in answers} <= {"stop", "length"}
    wrong = {whole.text: found for schema, whole in completed if (found := breaches(schema, whole.text))}
    assert wrong == {}


async def test_limits_stops_and_refusals_work_with_a_constraint(engine: TokenizerActor) -> None:
    cut = await answer(engine, "cut", Regex(pattern="[ab]{50}"), max_tokens=5)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 5)
    stopped = await answer(engine, "stopped", Regex(pattern="[ab]{5}STOP[ab]+"), stop=("STOP",))
    assert stopped.finish_reason == "stop"
    assert len(stopped.text) == 5
    assert set(stopped.text) <= set("ab")
    empty = await answer(engine, "empty", Regex(pattern=""))
    assert (empty.finish_reason, empty.text) == ("stop", "")
    going_on = await answer(engine, "going on", Regex(pattern="ab"), ignore_eos=True, max_tokens=9)
    assert (going_on.finish_reason, going_on.text) == ("length", "ab")
    for constraint in (
        JsonSchema(schema={"type": "nothing"}, param="the field"),
        Regex(pattern="(", param="the field"),
        Lark(grammar="start: unknown", param="the field"),
    ):
        with pytest.raises(RequestError) as refused:
            await answer(engine, "refused", constraint)
        assert (refused.value.status, refused.value.param) == (400, "the field")
    free, held = await asyncio.gather(answer(engine, "free", None, max_tokens=9), answer(engine, "held", AnyJson()))
    assert len(free.token_ids) <= 9
    assert held.text.startswith("{")


async def test_a_greedy_answer_is_what_masking_the_references_logits_gives(folder: Path) -> None:
    pattern = "(([a-z]{3,5}|[0-9]+) ?){4,9}[.]"
    async with engine_for(folder, SETTING) as engine:
        prompts = [(5, 6, 7), (100, 200, 300, 400), (9,)]
        answers = [
            await answer(engine, str(prompt), Regex(pattern=pattern), prompt=prompt, max_tokens=24)
            for prompt in prompts
        ]
    with DeviceThread() as thread:
        expected = thread.call(reference, folder, prompts, pattern, max_tokens=24)
    assert [list(whole.token_ids) for whole in answers] == expected


def reference(folder: Path, prompts: list[tuple[int, ...]], pattern: str, *, max_tokens: int) -> list[list[int]]:
    """`transformers` in float32, a mask, the largest; computed without a cache."""
    tokenizer = load_tokenizer(folder)
    vocabulary = load_vocabulary(
        VocabularyFacts(tokenizer_json=tokenizer.to_json(), vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,))
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts:
        matcher: LLMatcher = make_matcher(vocabulary, grammar_text(Regex(pattern=pattern)))
        token_ids: list[int] = []
        while len(token_ids) < max_tokens:
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, -1]
            allowed = torch.from_numpy(allowed_tokens(matcher))
            token_id = int(allowed[logits[allowed].argmax()])
            if token_id == EOS:
                break
            token_ids.append(token_id)
            matcher.consume_token(token_id)
        answers.append(token_ids)
    return answers
