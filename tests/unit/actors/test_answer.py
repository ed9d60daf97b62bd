from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.byte_tokenizer import EOS

from pagefall.actors.answer import Answer
from pagefall.actors.generation import TextGeneration
from pagefall.messages import FinishReason, PrefixReport, RequestId, RequestOutput, TokenLogprob
from pagefall.text.requests import TextDelta, Usage
from pagefall.text.tokenizer import Tokenizer

NUM_SCORED = 1000

PROMPT = np.array([1, 2, 3], dtype=np.uint32)
TAIL = "\x01\x02\x03"
"""The prompt's end as text, which the first delta has."""


def output(*token_ids: int, finish_reason: FinishReason | None = None, logprobs: bool = False) -> RequestOutput:
    return RequestOutput(
        request_id=RequestId("a"),
        token_ids=token_ids,
        logprobs=tuple(TokenLogprob(token_id, -0.5) for token_id in token_ids) if logprobs else (),
        finish_reason=finish_reason,
        cached_tokens=2,
        cached_tokens_by_tier={"device": 2},
    )


def usage(completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=3, completion_tokens=completion_tokens, cached_tokens=2, cached_tokens_by_tier={"device": 2}
    )


def test_tokens_become_deltas_and_the_last_one_has_the_usage(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ())
    assert answer.take() is None
    answer.push(output(*b"h"))
    assert answer.take() == TextDelta(text="h", token_ids=(104,), prompt_tail=TAIL)
    answer.push(output(*b"i", finish_reason="length"))
    assert answer.take() == TextDelta(text="i", token_ids=(105,), finish_reason="length", usage=usage(2))
    assert answer.take() is None


def test_what_is_not_taken_in_time_becomes_one_delta(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ())
    for byte in b"hello":
        answer.push(output(byte))
    assert answer.take() == TextDelta(text="hello", token_ids=tuple(b"hello"), prompt_tail=TAIL)


def test_the_stop_token_counts_but_is_not_shown(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ())
    answer.push(output(*b"h", logprobs=True))
    answer.push(output(EOS, finish_reason="stop", logprobs=True))
    delta = answer.take()
    assert delta is not None
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.usage) == ("h", (104,), "stop", usage(2))
    assert len(delta.logprobs) == 1


def test_the_stop_string_that_was_found_is_named(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ("no", "lo"))
    answer.push(output(*b"hel"))
    answer.push(output(*b"lo"))
    delta = answer.take()
    assert delta is not None
    assert (delta.text, delta.finish_reason, delta.stop_string) == ("hel", "stop", "lo")


def test_only_the_first_delta_says_what_is_kept(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, (), num_pinned_tokens=2)
    told: list[int] = []
    for byte in b"hi":
        answer.push(output(byte))
        delta = answer.take()
        assert delta is not None
        told.append(delta.num_pinned_tokens)
    assert told == [2, 0]


def test_an_end_without_tokens_is_shown_as_it_is(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ())
    answer.push(output(finish_reason="abort"))
    assert answer.take() == TextDelta(text="", token_ids=(), finish_reason="abort", usage=usage(0), prompt_tail=TAIL)


def test_a_stop_string_ends_the_answer_and_only_tokens_up_to_it_count(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ("END",))
    reasons = []
    for outputs in (output(*b"so EN"), output(*b"D and more"), output(*b"ignored", finish_reason="length")):
        answer.push(outputs)
        reasons.append(answer.finish_reason)
    assert reasons == [None, "stop", "stop"]
    delta = answer.take()
    assert delta is not None
    assert (delta.text, delta.finish_reason, delta.usage) == ("so ", "stop", usage(6))
    assert delta.token_ids == tuple(b"so END")
    assert answer.take() is None


def test_a_stop_string_in_the_last_output_wins_over_its_length(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ("END",))
    answer.push(output(*b"so END", finish_reason="length"))
    delta = answer.take()
    assert delta is not None
    assert (delta.text, delta.finish_reason, delta.usage) == ("so ", "stop", usage(6))


def test_what_could_have_become_a_stop_string_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ("END",))
    answer.push(output(*b"so EN"))
    delta = answer.take()
    assert delta is not None
    assert delta.text == "so "
    answer.push(output(EOS, finish_reason="stop"))
    assert answer.take() == TextDelta(text="EN", token_ids=(), finish_reason="stop", usage=usage(6))


def test_half_a_character_is_held_back_until_it_is_whole_or_the_answer_ends(tokenizer: Tokenizer) -> None:
    first, *rest = "안".encode()
    answer = Answer(tokenizer, PROMPT, ())
    answer.push(output(first))
    assert answer.take() == TextDelta(text="", token_ids=(first,), prompt_tail=TAIL)
    answer.push(output(*rest))
    assert answer.take() == TextDelta(text="안", token_ids=tuple(rest))
    answer.push(output(first, finish_reason="length"))
    assert answer.take() == TextDelta(text="\ufffd", token_ids=(first,), finish_reason="length", usage=usage(4))


def test_every_shown_token_has_its_log_probability(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, ())
    answer.push(output(*b"hi", logprobs=True))
    delta = answer.take()
    assert delta is not None
    assert [logprob.chosen.text for logprob in delta.logprobs] == ["h", "i"]


def test_special_tokens_that_are_kept_are_spelled_out(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, PROMPT, (), frozenset([EOS]))
    answer.push(output(*b"a", EOS, *b"b", finish_reason="length"))
    delta = answer.take()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("a</s>b", (97, EOS, 98))


def scored(tokenizer: Tokenizer) -> Answer:
    """Of a long prompt that is echoed with its log-probabilities; the answer is complete."""
    prompt = np.full(NUM_SCORED, ord("a"), dtype=np.uint32)
    answer = Answer(tokenizer, prompt, (), echoed="a" * NUM_SCORED, echoes_logprobs=True, num_pinned_tokens=5)
    candidates = tuple((token_id, -1.0) for token_id in range(97, 117))
    answer.push(
        RequestOutput(
            request_id=RequestId("a"),
            token_ids=tuple(b"hi"),
            logprobs=tuple(TokenLogprob(token_id, -0.5) for token_id in b"hi"),
            finish_reason="length",
            prefix=PrefixReport(
                page_size=16,
                num_prompt_tokens=NUM_SCORED,
                num_tokens_by_source={"computed": NUM_SCORED},
                num_known_tokens=0,
                misses=(),
                divergence=None,
            ),
            prompt_logprobs=tuple(TokenLogprob(ord("a"), -0.25, candidates) for _ in range(NUM_SCORED - 1)),
        )
    )
    return answer


def test_the_logprobs_of_a_long_prompt_come_in_small_pieces_before_the_answers(tokenizer: Tokenizer) -> None:
    answer = scored(tokenizer)
    deltas = []
    while (delta := answer.take()) is not None:
        deltas.append(delta)
    assert max(len(delta.logprobs) for delta in deltas) <= 40
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    assert [logprob.is_first for logprob in logprobs] == [True] + [False] * (NUM_SCORED + 1)
    assert "".join(logprob.chosen.text for logprob in logprobs) == "a" * NUM_SCORED + "hi"
    assert "".join(delta.text for delta in deltas) == "a" * NUM_SCORED + "hi"
    for facts in (
        [delta for delta in deltas if delta.prefix is not None],
        [delta for delta in deltas if delta.prompt_tail],
        [delta for delta in deltas if delta.num_pinned_tokens == 5],
    ):
        assert facts == deltas[:1]
    assert [delta for delta in deltas if delta.usage is not None] == deltas[-1:]
    assert [delta for delta in deltas if delta.token_ids] == deltas[-1:]


@pytest.mark.anyio
async def test_others_get_their_turn_between_the_pieces_of_a_long_prompts_logprobs(tokenizer: Tokenizer) -> None:
    generation = TextGeneration(scored(tokenizer), lambda: None)
    num_turns = 0

    async def take_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    deltas = [delta async for delta in generation]
    other.cancel()
    assert len(deltas) > 20
    assert num_turns >= len(deltas) - 1
