from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.bench.load.texts import Texts, words
from pagefall.bench.load.turns import Message, Piece, Turn
from pagefall.bench.prompts import WORDS

SYSTEM = Piece(key="s", num_tokens=6, role="system")
ASKED = Piece(key="q", num_tokens=4)
ANSWER = Piece(key="a", num_tokens=2, role="assistant", answer_to=0)


def turn(*pieces: Piece, literal: str | tuple[Message, ...] | None = None) -> Turn:
    return Turn(part="x", pieces=pieces, output_tokens=1, literal=literal)


def test_words_stay_the_same_in_every_version() -> None:
    assert words(7, "system 0", 4) == "hair answer bear grass"


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50))
def test_a_longer_text_begins_with_the_shorter(less: int, more: int) -> None:
    less, more = sorted((less, more))
    assert words(1, "k", more).split()[:less] == words(1, "k", less).split()


def test_all_words_are_common_ones() -> None:
    assert set(words(3, "k", 5_000).split()) == set(WORDS)


@pytest.mark.parametrize(("tokens_per_word", "num_words"), [(1.0, 300), (1.5, 200), (0.75, 400)])
def test_lengths_follow_the_servers_count(tokens_per_word: float, num_words: int) -> None:
    texts = Texts(seed=0, tokens_per_word=tokens_per_word)
    assert len(texts.of(Piece(key="k", num_tokens=300)).split()) == num_words


def test_a_prompt_is_its_pieces_and_a_chat_has_a_message_for_each_role() -> None:
    texts = Texts(seed=0, tokens_per_word=1.0)
    said = turn(SYSTEM, ASKED, Piece(key="more", num_tokens=1), ANSWER, ASKED)
    prompt = texts.prompt(said, {})
    messages = texts.messages(said, {})
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert " ".join(message.content for message in messages) == prompt
    assert len(prompt.split()) == said.num_tokens


def test_real_answers_stand_where_they_are_known() -> None:
    texts = Texts(seed=0, tokens_per_word=1.0)
    said = turn(ASKED, ANSWER, ASKED)
    assert texts.messages(said, {0: "What they said."})[1].content == "What they said."
    assert texts.messages(said, {1: "of another turn"})[1].content == texts.of(ANSWER)


def test_a_traces_words_are_sent_as_they_are() -> None:
    texts = Texts(seed=0, tokens_per_word=1.0)
    chat = (Message(role="developer", content="Be brief."), Message(role="user", content="Hi"))
    assert texts.messages(turn(literal=chat), {}) == chat
    assert texts.prompt(turn(literal="Once upon"), {}) == "Once upon"
    assert texts.messages(turn(literal="Once upon"), {}) == (Message(role="user", content="Once upon"),)
    with pytest.raises(ValueError, match="chat"):
        texts.prompt(turn(literal=chat), {})
