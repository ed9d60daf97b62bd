from __future__ import annotations

import random

from pagefall.bench.prompts import WORDS, TextPrompts, TokenPrompts


def test_token_prompts_have_exactly_the_length_and_never_repeat() -> None:
    prompts = TokenPrompts(random.Random(1))
    first, second = prompts.make(512), prompts.make(512)
    assert len(first) == len(second) == 512
    assert first[:16] != second[:16]


def test_a_seed_makes_the_same_prompts_again() -> None:
    assert TokenPrompts(random.Random(1)).make(64) == TokenPrompts(random.Random(1)).make(64)


def test_text_prompts_are_sized_by_tokens_per_word() -> None:
    assert len(TextPrompts(random.Random(1), 2.0).make(100).split()) == 50
    assert len(TextPrompts(random.Random(1), 2.0).make(1).split()) == 1


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
