"""A real model behind the real actors, without HTTP, and what `transformers` itself would answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForCausalLM

from pagefall.actors.runner import DeviceThread
from pagefall.actors.tokenizer import TokenizerActor
from pagefall.app import grammars_for, running_engine
from pagefall.config import CacheConfig, Dtype, ModelConfig, SchedulerConfig, TierConfig
from pagefall.messages import RequestId, SamplingParams
from pagefall.model.engine import load
from pagefall.model.spec import inspect
from pagefall.text.requests import GenerateRequest, ModelCard, TokenPrompt, Usage
from pagefall.text.tokenizer import load_tokenizer

TokenList = tuple[int, ...]

_ids = itertools.count()


class Setting(msgspec.Struct, frozen=True):
    """What must not change an answer."""

    page_size: int = 16
    chunk: int = 512
    num_tokens: int = 24_576
    max_running: int = 16

    def __str__(self) -> str:
        return f"page{self.page_size}-chunk{self.chunk}-pool{self.num_tokens}"

    @property
    def cache(self) -> CacheConfig:
        return CacheConfig(page_size=self.page_size, max_total_tokens=self.num_tokens)

    @property
    def scheduler(self) -> SchedulerConfig:
        return SchedulerConfig(chunked_prefill_size=self.chunk, max_running_requests=self.max_running)


@asynccontextmanager
async def engine_for(folder: Path, setting: Setting, dtype: Dtype = "float32") -> AsyncIterator[TokenizerActor]:
    config = ModelConfig(model_path=str(folder), dtype=dtype, device="cpu")
    with DeviceThread() as thread:
        spec = thread.call(inspect, config)
        tokenizer = load_tokenizer(str(folder))
        grammars = grammars_for(tokenizer, spec)
        model = thread.call(
            load, spec, setting.cache, setting.scheduler, TierConfig(), compile=config.compile, grammars=grammars
        )
        async with running_engine(
            model,
            tokenizer,
            ModelCard(id="test", context_length=model.info.context_length, vocab_size=spec.vocab_size, created=0),
            thread=thread,
            num_pages=model.info.pool.num_pages,
            eos_token_ids=spec.eos_token_ids,
            cache=setting.cache,
            scheduler=setting.scheduler,
            grammars=grammars,
        ) as engine:
            yield engine


async def answer(engine: TokenizerActor, prompt: TokenList, num_tokens: int) -> tuple[TokenList, Usage]:
    """A greedy answer of exactly `num_tokens`."""
    request = GenerateRequest(
        request_id=RequestId(f"test-{next(_ids)}"),
        prompt=TokenPrompt(prompt),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=num_tokens,
        ignore_eos=True,
    )
    generation = await engine.generate(request)
    token_ids: list[int] = []
    async for delta in generation:
        token_ids.extend(delta.token_ids)
        if delta.usage is not None:
            return tuple(token_ids), delta.usage
    raise AssertionError("the answer ended without usage")


async def answers(
    engine: TokenizerActor, prompts: Sequence[TokenList], num_tokens: int, *, together: bool
) -> tuple[list[TokenList], list[Usage]]:
    """One answer a prompt: all at once, or one after the other."""
    if together:
        pairs = await asyncio.gather(*(answer(engine, prompt, num_tokens) for prompt in prompts))
    else:
        pairs = [await answer(engine, prompt, num_tokens) for prompt in prompts]
    return [token_ids for token_ids, _ in pairs], [usage for _, usage in pairs]


def greedy_by_transformers(folder: Path, prompts: Sequence[TokenList], num_tokens: int) -> list[TokenList]:
    """What `generate` answers in float32, each prompt alone."""
    with DeviceThread() as thread:  # see there why nothing is computed in this one
        return thread.call(_generate, folder, prompts, num_tokens)


def _generate(folder: Path, prompts: Sequence[TokenList], num_tokens: int) -> list[TokenList]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    results: list[TokenList] = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        results.append(tuple(output[0, len(prompt) :].tolist()))
    return results
