"""Log-probabilities of a prompt's own tokens are those of `transformers`, whatever is cached; and `max_tokens` 0."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.engine_rig import Setting, TokenList, engine_for
from tests.tiny_models import VOCAB_SIZE, make_tiny, make_tiny_tokenizer
from transformers import AutoModelForCausalLM

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.api.choices import choices_of
from pagefall.messages import RequestId, SamplingParams
from pagefall.text.requests import GenerateRequest, TextDelta, TextLogprob, TokenPrompt

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

_ids = itertools.count()

PROMPTS: list[TokenList] = [
    tuple(np.random.default_rng(7).integers(2, VOCAB_SIZE, length).tolist()) for length in (1, 2, 33, 300)
]


def _checkpoint(kind: str, parent: Path) -> Path:
    folder = make_tiny(kind, parent / kind)
    make_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _checkpoint("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(params=["llama", "mistral", "gemma2"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, llama: Path) -> Path:
    """Of the fused forward, of one with a window, and of transformers' own."""
    return llama if request.param == "llama" else _checkpoint(request.param, tmp_path)


def _request(prompt: TokenList, *, max_tokens: int = 0, echo: bool = True) -> GenerateRequest:
    return GenerateRequest(
        request_id=RequestId(f"r{next(_ids)}"),
        prompt=TokenPrompt(prompt),
        sampling=SamplingParams(temperature=0.0, num_top_logprobs=3),
        max_tokens=max_tokens,
        ignore_eos=True,
        echo=echo,
    )


async def _ask(engine: TokenizerActor, request: GenerateRequest) -> list[TextDelta]:
    return [delta async for delta in await engine.generate(request)]


def _logprobs(deltas: Sequence[TextDelta]) -> list[TextLogprob]:
    return [logprob for delta in deltas for logprob in delta.logprobs]


def _by_transformers(folder: Path, token_ids: TokenList) -> torch.Tensor:
    """`[len(token_ids), vocab_size]`."""

    def compute() -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
        return logits.log_softmax(dim=-1)

    with DeviceThread() as thread:
        return thread.call(compute)


def _check(folder: Path, token_ids: TokenList, logprobs: Sequence[TextLogprob]) -> None:
    assert [logprob.chosen.token_id for logprob in logprobs] == list(token_ids)
    assert [logprob.is_first for logprob in logprobs] == [True] + [False] * (len(token_ids) - 1)
    expected = _by_transformers(folder, token_ids)
    for position, logprob in enumerate(logprobs[1:]):
        assert logprob.chosen.logprob == pytest.approx(float(expected[position, token_ids[position + 1]]), abs=1e-3)
        best = expected[position].topk(3)
        assert [token.token_id for token in logprob.top] == best.indices.tolist()
        assert [token.logprob for token in logprob.top] == pytest.approx(best.values.tolist(), abs=1e-3)


async def test_a_prompts_logprobs_are_those_of_transformers_cold_and_cached(folder: Path) -> None:
    async with engine_for(folder, Setting(16, 64)) as engine:
        for prompt in PROMPTS:
            for _ in range(2):
                deltas = await _ask(engine, _request(prompt))
                assert deltas[-1].finish_reason == "length"
                assert deltas[-1].usage is not None
                assert (deltas[-1].usage.completion_tokens, deltas[-1].usage.cached_tokens) == (0, 0)
                assert deltas[0].prefix is not None
                assert {miss.reason for miss in deltas[0].prefix.misses} <= {"scored", "page_tail"}
                _check(folder, prompt, _logprobs(deltas))
        together = await asyncio.gather(*(_ask(engine, _request(prompt, max_tokens=5)) for prompt in PROMPTS))
        for prompt, deltas in zip(PROMPTS, together, strict=True):
            answer = _logprobs(deltas)[len(prompt) :]
            assert len(answer) == 5
            _check(folder, (*prompt, *(logprob.chosen.token_id for logprob in answer)), _logprobs(deltas))
        assert engine.stats().num_conservation_breaches == 0


async def test_a_prompt_without_an_answer_is_cached_for_the_next(llama: Path) -> None:
    async with engine_for(llama, Setting(16, 64)) as engine:
        [warm_up] = await _ask(engine, _request(PROMPTS[3], echo=False))
        assert (warm_up.text, warm_up.token_ids, warm_up.finish_reason) == ("", (), "length")
        deltas = await _ask(engine, _request(PROMPTS[3], max_tokens=2, echo=False))
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.cached_tokens == 299 // 16 * 16


async def test_scored_prompts_survive_preemption(llama: Path) -> None:
    async with engine_for(llama, Setting(page_size=16, chunk=64, num_tokens=480)) as engine:
        requests = [_request(PROMPTS[3], max_tokens=60) for _ in range(2)]
        rivals = [_request(prompt, max_tokens=100, echo=False) for prompt in (PROMPTS[2], PROMPTS[1])]
        answers = await asyncio.gather(*(_ask(engine, request) for request in (*rivals, *requests)))
        for deltas in answers[2:]:
            _check(llama, PROMPTS[3], _logprobs(deltas)[: len(PROMPTS[3])])
        assert engine.stats().num_conservation_breaches == 0


async def test_choices_compute_their_prompt_once(llama: Path) -> None:
    async with engine_for(llama, Setting(16, 64)) as engine:
        request = _request(PROMPTS[3], max_tokens=4, echo=False)
        sampling = SamplingParams(temperature=1.0, seed=5)
        choices = choices_of([msgspec.structs.replace(request, sampling=sampling)], 4)
        answers = await asyncio.gather(*(_ask(engine, choice) for choice in choices))
        usages = [deltas[-1].usage for deltas in answers]
        assert [usage.cached_tokens for usage in usages if usage is not None] == [0] + [299 // 16 * 16] * 3
        again = msgspec.structs.replace(
            choices[2], request_id=RequestId("alone"), sampling=msgspec.structs.replace(sampling, seed=7)
        )
        tokens = [[token for delta in deltas for token in delta.token_ids] for deltas in answers]
        assert len({tuple(each) for each in tokens}) == 4
        assert [token for delta in await _ask(engine, again) for token in delta.token_ids] == tokens[2]
