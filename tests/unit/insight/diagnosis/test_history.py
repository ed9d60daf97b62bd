from __future__ import annotations

import random

import pytest
from tests.unit.insight.diagnosis.traffic import causes, chat, diagnosed, the_loss, words

RNG = random.Random(4)
SYSTEM = words(RNG, 30)
TURNS = [words(RNG, 40) for _ in range(61)]


def test_a_window_that_slides_over_the_history_is_a_loss() -> None:
    prompts = [chat(SYSTEM, *TURNS[2 * turn : 2 * turn + 9]) for turn in range(26)]
    loss = the_loss(diagnosed(prompts), "rewritten_history")
    assert "dropped from the head of conversations, 2 at a time" in loss.evidence.text
    assert loss.evidence.place is not None
    assert loss.evidence.place.message_index == 1
    assert "cut seldom and much" in loss.advice
    # Seven of the nine messages were there before.
    num_repeated = sum(len(message) for message in TURNS[2:9]) / 4 * 25
    assert loss.num_tokens == pytest.approx(num_repeated, rel=0.15)


def test_a_conversation_that_only_grows_is_none() -> None:
    prompts = [chat(SYSTEM, *TURNS[: 2 * turn + 1]) for turn in range(20)]
    assert causes(diagnosed(prompts)) == []


def test_an_earlier_message_that_is_edited_is_a_loss() -> None:
    prompts = []
    for turn in range(2, 20):
        history = [words(RNG, 60), *TURNS[: 2 * turn]]  # a summary that is written anew each turn
        prompts.append(chat(SYSTEM, *history))
    loss = the_loss(diagnosed(prompts), "rewritten_history")
    assert "another one in its next turn" in loss.evidence.text
    assert loss.evidence.place is not None
    assert loss.evidence.place.message_index == 1


def test_another_question_at_the_same_point_is_no_rewriting() -> None:
    prompts = [chat(SYSTEM, *TURNS[:8], words(RNG, 40)) for _ in range(20)]
    assert causes(diagnosed(prompts)) == []


def test_conversations_that_share_short_messages_are_not_the_same() -> None:
    prompts = [chat(SYSTEM, "Hello", words(RNG, 40), "Thank you", words(RNG, 40), "Bye") for _ in range(20)]
    assert "rewritten_history" not in causes(diagnosed(prompts))


def test_a_timestamp_in_the_system_prompt_hides_no_window() -> None:
    prompts = [chat(f"It is 02:{turn:02}:00.\n{SYSTEM}", *TURNS[2 * turn : 2 * turn + 9]) for turn in range(26)]
    assert "rewritten_history" in causes(diagnosed(prompts))
