"""An answer's text is exact, however its steps and its reader cut it, in every script and with every stop string."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.text.conftest import byte_fallback_backend, byte_level_backend, metaspace_backend, wrap

from pagefall.actors.answer import Answer
from pagefall.messages import RequestId, RequestOutput, TokenLogprob
from pagefall.model.embedded import ensure_embedded
from pagefall.text.requests import TextDelta
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

FAMILY = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"
PIECES = st.sampled_from(
    [
        " the fox",
        "  \n\n\t",
        FAMILY,
        "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}",
        "e\N{COMBINING ACUTE ACCENT}\N{COMBINING CEDILLA}",
        "שלום, עולם",
        "مرحبا بالعالم",
        "नमस्ते",
        "\N{RIGHT-TO-LEFT OVERRIDE}abc\N{POP DIRECTIONAL FORMATTING}",
        "안녕 여러분",
        "日本語",
        "\0\x7f\ufeff",
        "\ufffd",
        "stop",
        "ST",
        "OP",
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=8).map("".join)


@cache
def tokenizer_named(name: str) -> Tokenizer:
    match name:
        case "embedded":
            return load_tokenizer(ensure_embedded())
        case "byte_level":
            return wrap(byte_level_backend())
        case "byte_fallback":
            return wrap(byte_fallback_backend())
        case _:
            return wrap(metaspace_backend())


def answered(
    tokenizer: Tokenizer, prompt: list[int], steps: list[list[int]], stop: tuple[str, ...], takes: list[bool]
) -> list[TextDelta]:
    """What a reader gets who looks after those steps for which `takes` says so, and at the end."""
    answer = Answer(tokenizer, np.array(prompt, dtype=np.uint32), stop)
    deltas = []
    for index, step in enumerate(steps):
        answer.push(
            RequestOutput(
                request_id=RequestId("a"),
                token_ids=tuple(step),
                logprobs=tuple(TokenLogprob(token_id, -1.0) for token_id in step),
                finish_reason="length" if index == len(steps) - 1 else None,
            )
        )
        if takes[index % len(takes)] or index == len(steps) - 1:
            deltas.append(answer.take())
    return [delta for delta in deltas if delta is not None]


def first_stop(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the stop string that is complete first begins; of those that end together the longest."""
    ends = [(start + len(string), start) for string in stop if (start := text.find(string)) >= 0]
    return min(ends)[1] if ends else None


@pytest.mark.parametrize("name", ["embedded", "byte_level", "byte_fallback", "metaspace"])
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_the_joined_deltas_are_the_text_up_to_the_first_stop_string(name: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_named(name)
    prompt = tokenizer.encode("the", add_special_tokens=False).tolist()
    token_ids = tokenizer.encode(data.draw(TEXTS), add_special_tokens=False).tolist()
    token_ids = token_ids or prompt
    text = tokenizer.decode(prompt + token_ids)[len(tokenizer.decode(prompt)) :]
    starts = st.integers(0, max(0, len(text) - 1))
    cuts_of_it = st.tuples(starts, st.integers(1, 5)).map(lambda cut: text[cut[0] : cut[0] + cut[1]] or "x")
    stop = tuple(data.draw(st.lists(st.one_of(cuts_of_it, st.just("STOP")), max_size=3)))
    width = data.draw(st.integers(1, 4))
    steps = [token_ids[start : start + width] for start in range(0, len(token_ids), width)]
    deltas = answered(tokenizer, prompt, steps, stop, data.draw(st.lists(st.booleans(), min_size=1, max_size=5)))
    end = first_stop(text, stop)
    joined = "".join(delta.text for delta in deltas)
    assert joined == (text if end is None else text[:end])
    assert deltas[-1].finish_reason == ("length" if end is None else "stop")
    assert [delta for delta in deltas if delta.usage is not None] == deltas[-1:]
    num_shown = sum(len(delta.token_ids) for delta in deltas)
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == num_shown == sum(len(delta.logprobs) for delta in deltas)
    assert end is not None or num_shown == len(token_ids)


@pytest.mark.parametrize("name", ["embedded", "byte_fallback"])
def test_no_delta_ends_inside_a_character(name: str) -> None:
    tokenizer = tokenizer_named(name)
    text = f"{FAMILY} नमस्ते 안녕 e\N{COMBINING ACUTE ACCENT}"
    prompt = tokenizer.encode("the", add_special_tokens=False).tolist()
    steps = [[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False).tolist()]
    deltas = answered(tokenizer, prompt, steps, (), [True])
    assert "".join(delta.text for delta in deltas).removeprefix(" ") == text
    assert not any("\ufffd" in delta.text for delta in deltas)
