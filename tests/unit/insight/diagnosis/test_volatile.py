"""Text that changes in front of text that does not: found, named, counted; and what only looks like it is not."""

from __future__ import annotations

import random
import uuid

import pytest
from tests.unit.insight.diagnosis.traffic import causes, chat, diagnosed, text, the_loss, words

from pagefall.insight.diagnosis.observations import Observation

RNG = random.Random(1)
RULES = words(RNG, 300)


def question() -> str:
    return words(random.Random(RNG.random()), 30)


def prompts_with(values: list[str], *, head: str = "You help people.") -> list[Observation]:
    return [chat(f"{head} Now: {value}.\n{RULES}", question()) for value in values]


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("timestamp", [f"2026-11-30 02:{i:02}:{i * 7 % 60:02}" for i in range(30)]),
        ("date", [f"2026-{1 + i // 28:02}-{1 + i % 28:02}" for i in range(30)]),
        ("UUID", [str(uuid.UUID(int=i * 0x1234567890ABCDEF1234567, version=4)) for i in range(1, 31)]),
        ("counter", [str(1000 + i) for i in range(30)]),
        ("text", ["Ann", "Bob", "Cleo"] * 10),
    ],
)
def test_it_is_named_with_its_place_and_examples(form: str, values: list[str]) -> None:
    prompts = prompts_with(values)
    loss = the_loss(diagnosed(prompts), "volatile_text")
    place = loss.evidence.place
    assert place is not None
    assert (place.message_index, place.role, place.char_offset) == (0, "system", len("You help people. Now: "))
    assert form in loss.evidence.text
    assert set(loss.evidence.examples) <= set(values)
    assert len(loss.evidence.examples) >= 2
    assert "last user message" in loss.advice
    # Of each prompt but the first of its kind everything up to the question would have been found.
    num_lost = (len(set(values)) - 1) * len(RULES) / 4
    assert 0.9 * num_lost < loss.num_tokens < 1.1 * num_lost


def test_what_is_lost_is_what_the_fix_brings() -> None:
    values = [f"2026-11-30 02:{i:02}:{i * 7 % 60:02}" for i in range(30)]
    questions = [question() for _ in values]
    spoilt = diagnosed([chat(f"Now: {value}.\n{RULES}", asked) for value, asked in zip(values, questions, strict=True)])
    fixed = diagnosed([chat(RULES, f"{asked} Now: {value}.") for value, asked in zip(values, questions, strict=True)])
    assert spoilt.attainable is not None
    assert fixed.ceiling is not None
    assert spoilt.attainable == pytest.approx(fixed.ceiling, abs=0.03)
    assert fixed.losses == ()


def test_the_same_text_at_the_end_of_the_prompt_costs_nothing() -> None:
    prompts = [chat(RULES, f"{question()} (2026-11-30 02:{i:02}:00)") for i in range(30)]
    assert causes(diagnosed(prompts)) == []


def test_short_questions_that_differ_are_no_volatile_text() -> None:
    prompts = [chat(RULES, f"What is {i} and {i + 1}?") for i in range(30)]
    assert causes(diagnosed(prompts)) == []


def test_two_places_are_two_losses_that_both_have_to_go() -> None:
    prompts = [
        chat(f"Session {uuid.UUID(int=i, version=4)}.\n{RULES}\nNow: 02:{i:02}:00.\n{RULES[::-1]}", question())
        for i in range(1, 31)
    ]
    diagnosis = diagnosed(prompts)
    assert causes(diagnosis) == ["volatile_text", "volatile_text"]
    offsets = {loss.evidence.place.char_offset for loss in diagnosis.losses if loss.evidence.place is not None}
    assert offsets == {8, len(f"Session {uuid.UUID(int=1)}.\n{RULES}\nNow: ")}


def test_in_a_conversation_the_end_of_the_system_prompt_is_no_place_for_it() -> None:
    turns = [question() for _ in range(20)]
    prompts = [chat(f"{RULES}\nNow: 02:{number:02}:00.", *turns[: 2 * number + 1]) for number in range(10)]
    loss = the_loss(diagnosed(prompts), "volatile_text")
    assert "At the end of the system prompt it would still cost" in loss.advice


def test_a_prompt_that_is_one_text_has_no_message() -> None:
    prompts = [text(f"Request {i:05}.\n{RULES}\n{question()}") for i in range(30)]
    loss = the_loss(diagnosed(prompts), "volatile_text")
    assert loss.evidence.place is not None
    assert (loss.evidence.place.message_index, loss.evidence.place.char_offset) == (None, 8)
    assert loss.advice.startswith("Move it to the end of the prompt")


def test_token_ids_without_text_are_compared_too() -> None:
    prompts = []
    for number in range(30):
        observation = text(f"Request {number:04}.{RULES}\n{question()}")
        prompts.append(Observation(token_ids=observation.token_ids))
    loss = the_loss(diagnosed(prompts), "volatile_text")
    assert loss.evidence.place is not None
    assert loss.evidence.place.token_index == 2
    assert all(example.startswith("tokens ") for example in loss.evidence.examples)


def test_redacted_prompts_are_not_shown() -> None:
    diagnosis = diagnosed(prompts_with([f"2026-11-30 02:{i:02}:00" for i in range(30)]), show_text=False)
    assert the_loss(diagnosis, "volatile_text").evidence.examples == ()
    assert "02:0" not in repr(diagnosis)


def test_every_application_has_its_own_place() -> None:
    others = words(RNG, 300)
    prompts = []
    for number in range(30):
        prompts.append(chat(f"Now: 02:{number:02}:00.\n{RULES}", question()))
        prompts.append(chat(f"A clerk. Id {number * 7919:08}.\n{others}", question()))
    diagnosis = diagnosed(prompts)
    places = {loss.evidence.place.char_offset for loss in diagnosis.losses if loss.evidence.place is not None}
    assert places == {5, 12}
