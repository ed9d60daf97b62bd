"""The embedded model: fifty prompts, from one token to six thousand, answered as `transformers` answers them.

In float32 every answer is its, token for token, cold, warm, among strangers, at any chunk and page size, after
preemption and eviction. In bfloat16 `transformers` rounds elsewhere, so there a warm answer is held against a cold one.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.engine_rig import Setting, TokenList, answers, engine_for, greedy_by_transformers

from pagefall.model.embedded import ensure_embedded
from pagefall.text.tokenizer import load_tokenizer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

NUM_TOKENS = 10

_TEXTS = (
    "Hello",
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "What is 17 + 25? Answer with a number.",
    "안녕하세요. 오늘 서울의 날씨는 어떤가요?",
    "대한민국의 수도는 어디입니까? 짧게 대답해 주세요.",
    "다음 문장을 영어로 번역하세요: 나는 어제 도서관에서 책을 읽었다.",
    "def fibonacci(n: int) -> int:\n    ",
    "#include <stdio.h>\n\nint main(void) {\n    ",
    "SELECT name, count(*) FROM orders WHERE",
    '{"name": "Ada", "languages": ["python", ',
    "for i in range(10):\n    print(i",
    "🙂🙃😉 The meaning of these emoji is",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈 are made of several code points, because",
    "Roses are red,\nViolets are blue,\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "    indented\n\tand tabbed\n\n\n",
    "ÄÖÜ äöü ß — naïve café, piñata, smörgåsbord:",
    "东京是日本的首都。北京是",
    "Привет! Как дела?",
    "مرحبا بالعالم",
    "A B C D E F G H I J K",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "To be, or not to be, that is the question:",
    "In computing, a cache is",
    "import torch\nimport torch.nn as nn\n\nclass Attention(nn.Module):\n",
    "<html><body><h1>Title</h1><p>",
    "Q: Why is the sky blue?\nA:",
    "List three fruits:\n1.",
    "http://example.com/a?b=c&d=e",
    "0x1F + 0b101 =",
    "Dear Sir or Madam,\n\nI am writing to",
)
_CHATS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a radix tree is in two sentences.",
    "한국어로 자기소개를 해 주세요.",
    "Write a Python function that reverses a string.",
    "Tell me a joke about cats. 😹",
    "Summarise the plot of Hamlet.",
    "Which is larger, 9.11 or 9.9?",
)
_LENGTHS = (127, 128, 129, 300, 511, 513, 1024, 1500, 2000, 6000)
"""Tokens of the long prompts, all with the same beginning."""


def fifty_prompts(folder: Path) -> list[TokenList]:
    tokenizer = load_tokenizer(str(folder))
    chats = (f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in _CHATS)
    short = [tuple(tokenizer.encode(text, add_special_tokens=False).tolist()) for text in (*_TEXTS, *chats)]
    sentence = itertools.cycle(_TEXTS)
    story: list[int] = []
    number = 0
    while len(story) < max(_LENGTHS):
        number += 1
        story.extend(tokenizer.encode(f"\nChapter {number}. {next(sentence)}", add_special_tokens=False).tolist())
    return [*short, *(tuple(story[:length]) for length in _LENGTHS)]


class Case:
    def __init__(self) -> None:
        self.folder = ensure_embedded()
        self.prompts = fifty_prompts(self.folder)
        self.expected = greedy_by_transformers(self.folder, self.prompts, NUM_TOKENS)

    def up_to(self, num_tokens: int) -> tuple[list[TokenList], list[TokenList]]:
        """Prompts of at most so many tokens, and their expected answers."""
        pairs = [
            (prompt, answer)
            for prompt, answer in zip(self.prompts, self.expected, strict=True)
            if len(prompt) <= num_tokens
        ]
        return [prompt for prompt, _ in pairs], [answer for _, answer in pairs]


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_there_are_fifty_prompts_from_one_to_six_thousand_tokens(case: Case) -> None:
    lengths = [len(prompt) for prompt in case.prompts]
    assert len(lengths) == 50
    assert (min(lengths), max(lengths)) == (1, 6000)
    assert len(set(case.expected)) > 40, "the answers differ, so that a mix-up shows"


async def test_cold_warm_and_batched_answers_are_those_of_transformers(case: Case) -> None:
    async with engine_for(case.folder, Setting()) as engine:
        cold, _ = await answers(engine, case.prompts, NUM_TOKENS, together=False)
        assert cold == case.expected
        warm, usages = await answers(engine, case.prompts, NUM_TOKENS, together=False)
        assert warm == case.expected
        assert [usage.cached_tokens for usage in usages] == [(len(p) - 1) // 16 * 16 for p in case.prompts]
        await engine.flush_cache()
        strangers, _ = await answers(engine, case.prompts, NUM_TOKENS, together=True)
        assert strangers == case.expected


@pytest.mark.parametrize(
    ("setting", "longest"), [(Setting(1, 64), 600), (Setting(64, 16), 600), (Setting(64, 512), 2000)], ids=str
)
async def test_answers_do_not_depend_on_chunk_and_page_size(case: Case, setting: Setting, longest: int) -> None:
    prompts, expected = case.up_to(longest)
    async with engine_for(case.folder, setting) as engine:
        cold, _ = await answers(engine, prompts, NUM_TOKENS, together=True)
        warm, _ = await answers(engine, prompts, NUM_TOKENS, together=True)
    assert cold == warm == expected


async def test_answers_survive_eviction_pressure(case: Case) -> None:
    prompts, expected = case.up_to(1024)
    async with engine_for(case.folder, Setting(num_tokens=1600)) as engine:
        for _ in range(2):
            pressed, _ = await answers(engine, prompts, NUM_TOKENS, together=True)
            assert pressed == expected
        assert engine.stats().num_evicted_pages > 0


async def test_in_bfloat16_a_warm_answer_is_the_cold_one(case: Case) -> None:
    for setting in (Setting(), Setting(page_size=1, chunk=200)):
        async with engine_for(case.folder, setting, "bfloat16") as engine:
            cold, _ = await answers(engine, case.prompts, NUM_TOKENS, together=False)
            warm, usages = await answers(engine, case.prompts, NUM_TOKENS, together=False)
        assert warm == cold
        assert all(usage.cached_tokens for usage, prompt in zip(usages, case.prompts, strict=True) if len(prompt) > 16)
