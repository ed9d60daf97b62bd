from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from pagefall.errors import ModelError, RequestError
from pagefall.messages import TokenLogprob
from pagefall.text.logprobs import text_logprob
from pagefall.text.requests import ChatMessage
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

CHAT = (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"))


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    tokenizer._fast.save_pretrained(folder)
    return folder


def test_encode_returns_ids_that_decode_to_the_text(embedded: Tokenizer) -> None:
    text = "Hello 안녕 👩‍👩‍👧\n\tprint('x')"
    token_ids = embedded.encode(text, add_special_tokens=True)
    assert token_ids.dtype == np.uint32
    assert embedded.decode(token_ids) == text


def test_special_tokens_are_added_on_demand(byte_fallback: Tokenizer) -> None:
    bare = byte_fallback.encode("the fox", add_special_tokens=False).tolist()
    assert byte_fallback.encode("the fox", add_special_tokens=True).tolist() == [1, *bare]


def test_the_empty_text_has_no_tokens(embedded: Tokenizer) -> None:
    token_ids = embedded.encode("", add_special_tokens=False)
    assert token_ids.shape == (0,)
    assert embedded.decode(token_ids) == ""


def test_special_tokens_are_decoded_only_on_demand(embedded: Tokenizer) -> None:
    token_ids = embedded.encode("a<|im_end|>", add_special_tokens=False)
    assert embedded.decode(token_ids) == "a"
    assert embedded.decode(token_ids, skip_special_tokens=False) == "a<|im_end|>"


def test_the_embedded_model_knows_its_end_and_its_size(embedded: Tokenizer) -> None:
    assert embedded.eos_token_ids == {2}
    assert embedded.vocab_size == 49152
    assert embedded.is_byte_level


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("the quick fox", add_special_tokens=False).tolist()
    joined = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids)
    assert joined.decode().removeprefix(" ") == "the quick fox"


def test_a_token_of_half_a_character_is_shown_as_bytes(tokenizers_of_bytes: list[Tokenizer]) -> None:
    for tokenizer in tokenizers_of_bytes:
        first, *_ = tokenizer.encode("𓀀", add_special_tokens=False).tolist()[-4:]
        assert tokenizer.token_bytes(first) == b"\xf0"
        assert tokenizer.token_text(first) == "bytes:\\xf0"


def test_ids_without_a_token_have_no_bytes_and_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""


def test_logprobs_get_the_text_of_their_tokens(embedded: Tokenizer) -> None:
    hello, end = embedded.encode(" Hello<|im_end|>", add_special_tokens=False).tolist()
    logprob = text_logprob(embedded, TokenLogprob(hello, -0.5, ((hello, -0.5), (end, -1.5))))
    assert (logprob.chosen.text, logprob.chosen.bytes, logprob.special) == (" Hello", b" Hello", False)
    assert [(token.text, token.logprob) for token in logprob.top] == [(" Hello", -0.5), ("<|im_end|>", -1.5)]
    assert text_logprob(embedded, TokenLogprob(end, -0.1)).special


def test_the_chat_template_renders_the_conversation(embedded: Tokenizer) -> None:
    assert embedded.apply_chat_template(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_final_message_is_left_open_to_be_continued(embedded: Tokenizer) -> None:
    messages = (*CHAT, ChatMessage("assistant", "Hello, I"))
    rendered = embedded.apply_chat_template(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("<|im_start|>assistant\nHello, I")


def test_template_variables_reach_the_template(byte_level: Tokenizer) -> None:
    rendered = byte_level.apply_chat_template(
        (ChatMessage("user", "a"),), add_generation_prompt=False, template_kwargs={"mood": "!"}
    )
    assert rendered == "<user>a!\n"


@pytest.mark.parametrize("name", ["chat_template", "messages", "tokenize", "add_generation_prompt", "tools"])
def test_template_variables_cannot_replace_the_renderers_own(byte_level: Tokenizer, name: str) -> None:
    with pytest.raises(RequestError, match=name) as raised:
        byte_level.apply_chat_template(CHAT, template_kwargs={name: "x"})
    assert raised.value.param == "chat_template_kwargs"


def test_a_conversation_that_the_template_refuses_is_the_requests_fault(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no such turns") as raised:
        byte_level.apply_chat_template((ChatMessage("user", "refuse"),))
    assert (raised.value.status, raised.value.param) == (400, "messages")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[9].content.upper() }}",
        "{{ 1 / 0 }}",
        "{{ messages.x.y }}",
        "{% bad",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages + 1 }}",
    ],
)
def test_a_broken_or_hostile_template_fails_the_request_alone(byte_level: Tokenizer, template: str) -> None:
    broken = PreTrainedTokenizerFast(tokenizer_object=byte_level._backend, eos_token="</s>")
    broken.chat_template = template
    with pytest.raises(RequestError) as raised:
        Tokenizer(broken).apply_chat_template(CHAT)
    assert raised.value.param == "messages"


def test_a_model_without_a_template_says_what_to_do(byte_level: Tokenizer) -> None:
    plain = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=byte_level._backend))
    with pytest.raises(RequestError, match="/v1/completions"):
        plain.apply_chat_template(CHAT)


def test_a_saved_tokenizer_loads_from_its_folder(byte_level: Tokenizer, tmp_path: Path) -> None:
    loaded = load_tokenizer(save(byte_level, tmp_path))
    assert (
        loaded.encode("the fox", add_special_tokens=True).tolist()
        == byte_level.encode("the fox", add_special_tokens=True).tolist()
    )
    assert loaded.eos_token_ids == byte_level.eos_token_ids
    assert loaded.apply_chat_template(CHAT) == byte_level.apply_chat_template(CHAT)


def test_another_chat_template_can_be_given(byte_level: Tokenizer, tmp_path: Path) -> None:
    loaded = load_tokenizer(save(byte_level, tmp_path), chat_template="mine {{ messages[1].role }}")
    assert loaded.apply_chat_template(CHAT) == "mine user"


def test_a_folder_without_a_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No tokenizer could be loaded from") as raised:
        load_tokenizer(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_truncating_tokenizer_file_never_truncates_a_prompt(byte_level: Tokenizer) -> None:
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_level._backend)
    fast.backend_tokenizer.enable_truncation(2)
    fast.backend_tokenizer.enable_padding(length=9)
    assert len(Tokenizer(fast).encode("a b c d", add_special_tokens=False)) == 7


def test_many_threads_encode_decode_and_render_at_once(embedded: Tokenizer) -> None:
    texts = [f"{i} the quick brown 여우 jumps " * 50 for i in range(16)]

    def round_trip(text: str) -> tuple[str, str]:
        rendered = embedded.apply_chat_template((ChatMessage("user", text),))
        return embedded.decode(embedded.encode(text, add_special_tokens=True)), rendered

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(round_trip, texts))
    assert [decoded for decoded, _ in results] == texts
    assert all(text.strip() in rendered for text, (_, rendered) in zip(texts, results, strict=True))


def test_encoding_lets_other_threads_run(embedded: Tokenizer) -> None:
    started, ticks, done = threading.Event(), 0, threading.Event()
    text = "The quick brown fox jumps over the lazy dog. 안녕하세요 " * 6000

    def encode() -> None:
        started.set()
        embedded.encode(text, add_special_tokens=False)
        done.set()

    worker = threading.Thread(target=encode)
    worker.start()
    started.wait()
    while not done.wait(0.001):
        ticks += 1
    worker.join()
    assert ticks > 5
