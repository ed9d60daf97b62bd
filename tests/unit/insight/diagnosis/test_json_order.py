from __future__ import annotations

import json
import random
from typing import Any

from tests.unit.insight.diagnosis.traffic import causes, chat, diagnosed, the_loss, words

RNG = random.Random(3)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": words(random.Random(name), 40), "parameters": {}}}
    for name in ("calendar", "mail", "search", "weather")
]
RULES = words(RNG, 200)


def test_tools_in_varying_order_are_a_loss() -> None:
    prompts = [chat(RULES, words(RNG, 10), tools=RNG.sample(TOOLS, len(TOOLS))) for _ in range(40)]
    loss = the_loss(diagnosed(prompts), "json_order")
    assert "items" in loss.evidence.text
    assert "the tools" in loss.evidence.text
    assert "Sort before sending" in loss.advice
    assert loss.num_tokens > 0.2 * sum(len(prompt.token_ids) for prompt in prompts)


def test_tools_in_one_order_are_none() -> None:
    prompts = [chat(RULES, words(RNG, 10), tools=TOOLS) for _ in range(40)]
    assert causes(diagnosed(prompts)) == []


def test_other_tools_are_not_the_same_in_another_order() -> None:
    prompts = [chat(RULES, words(RNG, 10), tools=TOOLS[:2] if i % 2 else TOOLS[2:]) for i in range(40)]
    assert "json_order" not in causes(diagnosed(prompts))


def test_keys_in_varying_order_in_a_system_prompt_are_a_loss() -> None:
    facts = {name: words(random.Random(name), 3) for name in ("plan", "region", "language", "tone", "limits")}
    prompts = []
    for _ in range(60):
        shuffled = dict(RNG.sample(list(facts.items()), len(facts)))
        prompts.append(chat(f"Facts: {json.dumps(shuffled)}\n{RULES}", words(RNG, 10)))
    loss = the_loss(diagnosed(prompts), "json_order")
    assert "keys in another order" in loss.evidence.text
    assert loss.evidence.place is not None
    assert (loss.evidence.place.message_index, loss.evidence.place.char_offset) == (0, len("Facts: "))


def test_json_that_differs_in_a_value_is_no_order() -> None:
    prompts = [
        chat(
            f"Facts: {json.dumps({'plan': words(RNG, 60), 'tone': 'kind and short, please'})}\n{RULES}", words(RNG, 10)
        )
        for _ in range(20)
    ]
    assert "json_order" not in causes(diagnosed(prompts))
