from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.text.detokenize import IncrementalDetokenizer
from pagefall.text.tokenizer import Tokenizer
from pagefall.text.tokenizer import byte_fallback as byte_of

TEXTS = [
    "Hello, world! It's 3.14 o'clock.",
    " leading and  double   spaces\n\n\tand tabs ",
    "안녕하세요, 여러분! 반갑습니다.",
    "日本語のテキストと中文字符",
    "emoji 👩‍👩‍👧 with joiners 👍🏽 and flags 🇰🇷🇰🇷",
    "def f(x):\n    return {'a': [x ** 2]}  # naïve café",
    "\ufffd already replaced \ufffd",
]


def cut(token_ids: list[int], cuts: list[int]) -> list[list[int]]:
    bounds = [0, *sorted(cut % (len(token_ids) + 1) for cut in cuts), len(token_ids)]
    return [token_ids[start:end] for start, end in itertools.pairwise(bounds)]


def stream(tokenizer: Tokenizer, prompt: list[int], pushes: list[list[int]]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return "".join(detokenizer.push(push) for push in pushes) + detokenizer.flush()


def continues(tokenizer: Tokenizer, prompt: list[int], answer: list[int]) -> str:
    return tokenizer.decode(prompt + answer)[len(tokenizer.decode(prompt)) :]


@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_any_tokens_in_any_pushes_join_to_the_decoded_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = st.integers(0, tokenizer.vocab_size + 3)
    bytes_too = st.one_of(ids, st.sampled_from(short_tokens(tokenizer)))
    answer = data.draw(st.lists(bytes_too, max_size=40))
    pushes = cut(answer, data.draw(st.lists(st.integers(0, 40), max_size=10)))
    assert stream(tokenizer, [], pushes) == tokenizer.decode(answer)


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_an_answer_continues_the_text_of_any_prompt_that_ends_with_a_whole_token(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    ids = st.integers(0, tokenizer.vocab_size - 1)
    prompt = data.draw(st.lists(ids, max_size=6)) + tokenizer.encode("the", add_special_tokens=False).tolist()[-1:]
    answer = data.draw(st.lists(st.one_of(ids, st.sampled_from(short_tokens(tokenizer))), max_size=20))
    assert stream(tokenizer, prompt, [[token_id] for token_id in answer]) == continues(tokenizer, prompt, answer)


def short_tokens(tokenizer: Tokenizer) -> list[int]:
    """Tokens of single bytes, which make and break characters, and a special one."""
    singles = [i for i in range(min(tokenizer.vocab_size, 600)) if len(tokenizer.token_bytes(i)) == 1]
    return [*singles, *sorted(tokenizer.special_token_ids)[:1]]


@pytest.mark.parametrize("text", TEXTS)
def test_real_text_streams_token_by_token_unchanged(tokenizer: Tokenizer, text: str) -> None:
    answer = tokenizer.encode(text, add_special_tokens=False).tolist()
    assert stream(tokenizer, [], [[token_id] for token_id in answer]) == tokenizer.decode(answer)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_vocabularies_give_back_the_very_text(embedded: Tokenizer, byte_level: Tokenizer, text: str) -> None:
    for tokenizer in (embedded, byte_level):
        answer = tokenizer.encode(text, add_special_tokens=False).tolist()
        assert stream(tokenizer, [], [[token_id] for token_id in answer]) == text


def test_nothing_is_sent_of_a_character_whose_bytes_are_not_all_there(byte_level: Tokenizer) -> None:
    byte_tokens = [byte_level.encode("𓀀", add_special_tokens=False).tolist()][0]
    assert len(byte_tokens) == 4
    detokenizer = IncrementalDetokenizer(byte_level)
    assert [detokenizer.push([token_id]) for token_id in byte_tokens] == ["", "", "", "𓀀"]
    assert detokenizer.push(byte_tokens[:2]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_a_run_of_byte_tokens_waits_for_its_end(byte_fallback: Tokenizer) -> None:
    run = byte_fallback.encode("안녕", add_special_tokens=False).tolist()[1:]
    assert all(byte_of(byte_fallback.token(token_id) or "") is not None for token_id in run)
    [fox] = byte_fallback.encode("x", add_special_tokens=False).tolist()[1:]
    detokenizer = IncrementalDetokenizer(byte_fallback, [fox])
    assert detokenizer.push(run) == ""
    assert detokenizer.push([fox]) == "안녕x"


def test_a_leading_space_is_kept_behind_a_prompt_and_dropped_at_the_start_of_a_text(byte_fallback: Tokenizer) -> None:
    the = byte_fallback.encode("the", add_special_tokens=False).tolist()
    assert byte_fallback.token(the[0]) == "▁the"
    [bos] = byte_fallback.encode("<s>", add_special_tokens=False).tolist()[-1:]
    assert stream(byte_fallback, the, [the]) == " the"
    assert stream(byte_fallback, [*the, bos], [the]) == " the"
    assert stream(byte_fallback, [bos], [the]) == "the"


def test_a_character_that_the_prompt_left_open_is_not_completed(tokenizers_of_bytes: list[Tokenizer]) -> None:
    for tokenizer in tokenizers_of_bytes:
        *head, last = tokenizer.encode("the 𓀀", add_special_tokens=False).tolist()
        the = tokenizer.encode("the", add_special_tokens=False).tolist()
        assert stream(tokenizer, head, [[last], the[-1:]]).startswith("\ufffd")


def test_a_character_in_bytes_follows_a_prompt_that_ends_with_one(tokenizers_of_bytes: list[Tokenizer]) -> None:
    for tokenizer in tokenizers_of_bytes:
        prompt = tokenizer.encode("the 𓀀", add_special_tokens=False).tolist()
        assert stream(tokenizer, prompt, [[token_id] for token_id in prompt[-4:]]) == "𓀀"


def test_special_tokens_leave_no_text(tokenizer: Tokenizer) -> None:
    [special, *_] = sorted(tokenizer.special_token_ids)
    the = tokenizer.encode("the", add_special_tokens=False).tolist()
    assert stream(tokenizer, [], [the, [special]]) == tokenizer.decode(the)


@pytest.mark.parametrize("kind", ["ordinary", "bytes"])
def test_a_token_costs_the_same_at_the_end_of_a_long_answer(byte_fallback: Tokenizer, kind: str) -> None:
    token = byte_fallback.encode("the" if kind == "ordinary" else "안", add_special_tokens=False).tolist()[-1]

    def seconds_for(num_tokens: int) -> float:
        detokenizer = IncrementalDetokenizer(byte_fallback)
        start = time.process_time()
        for _ in range(num_tokens):
            detokenizer.push([token])
        detokenizer.flush()
        return time.process_time() - start

    seconds_for(100)
    assert seconds_for(20_000) < 40 * max(seconds_for(2_000), 0.001)
