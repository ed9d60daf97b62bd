from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.messages import TokenIds
from pagefall.text.answer_memory import AnswerMemory, PromptKey
from pagefall.text.encoding_cache import EncodingCache
from pagefall.text.requests import ChatMessage
from pagefall.text.tokenizer import Tokenizer

ASK = ChatMessage("user", "Hi")
NEXT = ChatMessage("user", "Go on")


def spelled(tokenizer: Tokenizer, text: str) -> TokenIds:
    """The text in other tokens than the tokenizer would take: a token for each character."""
    pieces = [tokenizer.encode(character, add_special_tokens=False) for character in text]
    return np.concatenate(pieces)


def memory_of(tokenizer: Tokenizer, *, max_tokens: int = 10_000) -> AnswerMemory:
    return AnswerMemory(tokenizer, EncodingCache(tokenizer), tokenizer.eos_token_ids, max_tokens=max_tokens)


def after(tokenizer: Tokenizer, *turns: ChatMessage) -> str:
    return tokenizer.apply_chat_template(turns)


def chat(tokenizer: Tokenizer, memory: AnswerMemory, texts: list[str]) -> list[TokenIds]:
    """The prompts of a conversation, in each of which the answers come back; before each what it must begin with."""
    turns = [ASK]
    prompts: list[TokenIds] = []
    for text in texts:
        encoded = memory.encode(after(tokenizer, *turns))
        assert encoded.key is not None
        answer = spelled(tokenizer, text)
        memory.remember(encoded.key, answer)
        turns += [ChatMessage("assistant", text), NEXT]
        prompts += [np.concatenate([encoded.token_ids, answer]), memory.encode(after(tokenizer, *turns)).token_ids]
    return prompts


def begins(longer: TokenIds, shorter: TokenIds) -> bool:
    return np.array_equal(longer[: len(shorter)], shorter)


def test_the_next_turn_begins_with_the_tokens_that_were_sampled(embedded: Tokenizer) -> None:
    prompts = chat(embedded, memory_of(embedded), ["Hello there, friend.", "안녕 👋", "And more of it\n"])
    for written, following in zip(prompts[::2], prompts[1::2], strict=True):
        assert begins(following, written)
    anew = embedded.encode(
        after(embedded, ASK, ChatMessage("assistant", "Hello there, friend."), NEXT), add_special_tokens=False
    )
    assert not begins(anew, prompts[0])


@given(texts=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_the_prompts_text_is_the_same_with_and_without_a_memory(embedded: Tokenizer, texts: list[str]) -> None:
    memory = memory_of(embedded)
    chat(embedded, memory, texts)
    turns = [ASK]
    for text in texts:
        turns += [ChatMessage("assistant", text), NEXT]
    rendered = after(embedded, *turns)
    assert embedded.decode(memory.encode(rendered).token_ids, skip_special_tokens=False) == embedded.decode(
        embedded.encode(rendered, add_special_tokens=False), skip_special_tokens=False
    )


@pytest.mark.parametrize(
    "turns",
    [
        (ASK, ChatMessage("assistant", "Hello there, friend!"), NEXT),
        (ChatMessage("user", "Ho"), ChatMessage("assistant", "Hello there, friend."), NEXT),
    ],
)
def test_another_answer_or_another_prompt_is_encoded_anew(embedded: Tokenizer, turns: tuple[ChatMessage, ...]) -> None:
    memory = memory_of(embedded)
    chat(embedded, memory, ["Hello there, friend."])
    rendered = after(embedded, *turns)
    assert memory.encode(rendered).token_ids.tolist() == embedded.encode(rendered, add_special_tokens=False).tolist()


def test_tenants_do_not_share_answers(embedded: Tokenizer) -> None:
    memory = memory_of(embedded)
    chat(embedded, memory, ["Hello there, friend."])
    rendered = after(embedded, ASK, ChatMessage("assistant", "Hello there, friend."), NEXT)
    canonical = embedded.encode(rendered, add_special_tokens=False).tolist()
    assert memory.encode(rendered).token_ids.tolist() != canonical
    assert memory.encode(rendered, "another").token_ids.tolist() == canonical


def test_the_answers_longest_unused_are_forgotten_first(embedded: Tokenizer) -> None:
    memory = memory_of(embedded, max_tokens=200)
    rendered = {}
    for name in ("first", "second", "third", "fourth"):
        ask = ChatMessage("user", name)
        encoded = memory.encode(after(embedded, ask))
        assert encoded.key is not None
        memory.remember(encoded.key, spelled(embedded, "Hello there, friend."))
        rendered[name] = after(embedded, ask, ChatMessage("assistant", "Hello there, friend."), NEXT)
        memory.encode(rendered["first"])  # in use
    canonical = {name: embedded.encode(text, add_special_tokens=False).tolist() for name, text in rendered.items()}
    known = {name for name, text in rendered.items() if memory.encode(text).token_ids.tolist() != canonical[name]}
    assert known == {"first", "third", "fourth"}


def test_an_answer_with_half_a_character_is_not_remembered(embedded: Tokenizer) -> None:
    memory = memory_of(embedded)
    encoded = memory.encode(after(embedded, ASK))
    assert encoded.key is not None
    half = embedded.encode("👋", add_special_tokens=False)[:1]
    memory.remember(encoded.key, half)
    rendered = after(embedded, ASK, ChatMessage("assistant", "\ufffd"), NEXT)
    assert memory.encode(rendered).token_ids.tolist() == embedded.encode(rendered, add_special_tokens=False).tolist()


def test_where_text_is_not_the_sum_of_its_tokens_nothing_is_remembered(byte_fallback: Tokenizer) -> None:
    memory = AnswerMemory(byte_fallback, EncodingCache(byte_fallback), byte_fallback.eos_token_ids)
    encoded = memory.encode("<user>the</s>")
    assert encoded.key is None
    assert encoded.token_ids.tolist() == byte_fallback.encode("<user>the</s>", add_special_tokens=False).tolist()


def test_the_answers_to_one_prompt_are_all_remembered(embedded: Tokenizer) -> None:
    memory = memory_of(embedded)
    encoded = memory.encode(after(embedded, ASK))
    assert encoded.key is not None
    texts = ["Hello there, friend.", "Something else."]
    for text in texts:
        memory.remember(encoded.key, spelled(embedded, text))
    for text in texts:
        following = memory.encode(after(embedded, ASK, ChatMessage("assistant", text), NEXT)).token_ids
        assert begins(following, np.concatenate([encoded.token_ids, spelled(embedded, text)]))


def test_tokens_never_stand_for_another_text_than_theirs(embedded: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptKey, "digest", lambda _: b"every text is taken for every other")
    memory = memory_of(embedded)
    chat(embedded, memory, ["Hello there, friend."])
    rendered = after(embedded, ASK, ChatMessage("assistant", "Goodbye."), NEXT)
    assert embedded.decode(memory.encode(rendered).token_ids, skip_special_tokens=False) == rendered


def test_what_is_cleared_is_forgotten_and_so_is_the_answer_that_was_under_way(embedded: Tokenizer) -> None:
    memory = memory_of(embedded)
    chat(embedded, memory, ["Hello there, friend."])
    under_way = memory.encode(after(embedded, NEXT))
    assert under_way.key is not None
    memory.clear()
    memory.remember(under_way.key, spelled(embedded, "Hello there, friend."))
    for ask in (ASK, NEXT):
        rendered = after(embedded, ask, ChatMessage("assistant", "Hello there, friend."), NEXT)
        anew = embedded.encode(rendered, add_special_tokens=False)
        assert memory.encode(rendered).token_ids.tolist() == anew.tolist()
    chat(embedded, memory, ["Hello there, friend."])
    rendered = after(embedded, ASK, ChatMessage("assistant", "Hello there, friend."), NEXT)
    anew = embedded.encode(rendered, add_special_tokens=False)
    assert memory.encode(rendered).token_ids.tolist() != anew.tolist()
