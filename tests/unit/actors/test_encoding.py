from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from pagefall.actors.encoding import PromptEncoder
from pagefall.errors import RequestError
from pagefall.insight.records import RequestRecord
from pagefall.messages import Divergence, PrefixReport, RequestId, TokenIds
from pagefall.model.embedded import ensure_embedded
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt, TokenPrompt, ToolCall
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.anyio


class WatchedTokenizer(Tokenizer):
    """Notes the threads it runs on; a closed gate holds them up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.__dict__ = dict(tokenizer.__dict__)
        self.threads: list[threading.Thread] = []
        self.gate = threading.Event()
        self.gate.set()

    def encode(self, text: str, *, add_special_tokens: bool) -> TokenIds:
        self.threads.append(threading.current_thread())
        self.gate.wait(timeout=10)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool = True) -> str:
        self.threads.append(threading.current_thread())
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@pytest.fixture
def watched(tokenizer: Tokenizer) -> WatchedTokenizer:
    return WatchedTokenizer(tokenizer)


async def test_every_kind_of_prompt_is_encoded(tokenizer: Tokenizer) -> None:
    with PromptEncoder(tokenizer, max_waiting=1) as encoder:
        assert (await encoder.encode(TextPrompt("hi"))).tolist() == list(b"hi")
        assert (await encoder.encode(TokenPrompt((1, 2)))).tolist() == [1, 2]
        chat = ChatPrompt(messages=(ChatMessage("user", "hi"),))
        assert (await encoder.encode(chat)).tolist() == list(b"user: hi\nassistant: ")
        assert await encoder.decode([104, 105]) == "hi"


@pytest.mark.parametrize("num_gone", [0, 1])
async def test_a_long_prompt_that_several_requests_share_is_encoded_once(
    watched: WatchedTokenizer, num_gone: int
) -> None:
    prompt = TextPrompt("x" * 5000)
    watched.gate.clear()
    with PromptEncoder(watched, max_waiting=1) as encoder:
        tasks = [asyncio.ensure_future(encoder.encode_with_history(prompt, "")) for _ in range(4)]
        while not watched.threads:
            await asyncio.sleep(0)
        for task in tasks[:num_gone]:
            task.cancel()
        watched.gate.set()
        encoded = await asyncio.gather(*tasks[num_gone:])
        assert {len(each.token_ids) for each in encoded} == {5000}
        assert len(watched.threads) == 1 + num_gone
        await encoder.encode_with_history(prompt, "")
        assert len(watched.threads) == 2 + num_gone


async def test_every_choice_of_a_long_chat_comes_back_with_the_tokens_it_was_sampled_in() -> None:
    embedded = load_tokenizer(ensure_embedded())
    ask = ChatMessage("user", "Hello! " * 300)
    sampled = [
        [int(embedded.encode(letter, add_special_tokens=False)[0]) for letter in text] for text in ("hello", "there")
    ]
    with PromptEncoder(embedded, max_waiting=4, end_token_ids=embedded.eos_token_ids) as encoder:
        prompt = ChatPrompt(messages=(ask,))
        choices = await asyncio.gather(*(encoder.encode_with_history(prompt, "") for _ in sampled))
        for choice, answer in zip(choices, sampled, strict=True):
            assert choice.key is not None
            encoder.remember(choice.key, answer)
        for choice, answer in zip(choices, sampled, strict=True):
            messages = (ask, ChatMessage("assistant", embedded.decode(answer)), ChatMessage("user", "Go on"))
            following = (await encoder.encode_with_history(ChatPrompt(messages=messages), "")).token_ids.tolist()
            expected = [*choice.token_ids.tolist(), *answer]
            assert following[: len(expected)] == expected


async def test_long_texts_are_encoded_and_decoded_off_the_loops_thread(watched: WatchedTokenizer) -> None:
    with PromptEncoder(watched, max_waiting=1) as encoder:
        assert len(await encoder.encode(TextPrompt("x" * 5000))) == 5000
        assert len(await encoder.decode([120] * 5000)) == 5000
        assert threading.current_thread() not in watched.threads
        await encoder.encode(TextPrompt("short"))
        assert threading.current_thread() in watched.threads


@pytest.mark.parametrize(
    "messages",
    [
        (ChatMessage("user", ""),) * 100,
        (ChatMessage("assistant", "", reasoning_content="x" * 2000),),
        (ChatMessage("user", "", name="x" * 2000),),
        (ChatMessage("assistant", "", tool_calls=(ToolCall(call_id="", name="", arguments=""),) * 100),),
        (ChatMessage("assistant", "", tool_calls=(ToolCall(call_id="", name="x" * 2000, arguments=""),)),),
    ],
    ids=["many messages", "a long thought", "a long name", "many calls", "a long name of a call"],
)
async def test_a_chat_without_much_content_may_be_long_too(
    watched: WatchedTokenizer, messages: tuple[ChatMessage, ...]
) -> None:
    with PromptEncoder(watched, max_waiting=1) as encoder:
        await encoder.encode(ChatPrompt(messages=messages))
        assert threading.current_thread() not in watched.threads
        await encoder.encode(ChatPrompt(messages=(ChatMessage("user", "short"),)))
        assert threading.current_thread() in watched.threads


async def test_the_loop_goes_on_while_long_prompts_are_encoded(watched: WatchedTokenizer) -> None:
    watched.gate.clear()
    with PromptEncoder(watched, max_waiting=50) as encoder:
        encodings = [asyncio.create_task(encoder.encode(TextPrompt("x" * 30_000))) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert len(watched.threads) <= 2
        watched.gate.set()
        assert {len(token_ids) for token_ids in await asyncio.gather(*encodings)} == {30_000}


async def test_too_many_waiting_prompts_are_refused(watched: WatchedTokenizer) -> None:
    watched.gate.clear()
    with PromptEncoder(watched, max_waiting=2) as encoder:
        encodings = [asyncio.create_task(encoder.encode(TextPrompt("x" * 2000))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await encoder.encode(TextPrompt("x" * 2000))
        assert (refused.value.status, refused.value.retry_after_seconds) == (503, 1)
        watched.gate.set()
        await asyncio.gather(*encodings)
        await encoder.encode(TextPrompt("x" * 2000))


async def test_a_template_that_refuses_is_the_requests_error(tokenizer: Tokenizer) -> None:
    with PromptEncoder(tokenizer, max_waiting=1) as encoder:
        for padding in ("", "x" * 2000):
            messages = (ChatMessage("user", "refuse"), ChatMessage("user", padding))
            with pytest.raises(RequestError, match="no such turns"):
                await encoder.encode(ChatPrompt(messages=messages))


async def test_explanations_are_made_off_the_loops_thread_and_few_at_once(watched: WatchedTokenizer) -> None:
    token_ids = watched.encode("a b c", add_special_tokens=False)
    record = RequestRecord(
        request_id=RequestId("r"),
        prompt=TextPrompt("a b c"),
        token_ids=token_ids,
        cache_salt="",
        max_tokens=1,
        arrived_at=0.0,
        began_at=0.0,
        report=PrefixReport(
            page_size=16,
            num_prompt_tokens=5,
            num_tokens_by_source={"computed": 5},
            num_known_tokens=0,
            misses=(),
            divergence=Divergence(
                token_index=4, has_other=True, is_cached=True, window_start=3, other_token_ids=(32, 100)
            ),
        ),
    )
    watched.threads.clear()
    with PromptEncoder(watched, max_waiting=1) as encoder:
        explaining = [asyncio.create_task(encoder.explain(record, model="m", redact=False)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as refused:
            await encoder.explain(record, model="m", redact=False)
        assert refused.value.status == 503
        for explained in await asyncio.gather(*explaining):
            assert explained.divergence is not None
            assert explained.divergence.character == 4
        assert watched.threads
        assert threading.current_thread() not in watched.threads
        assert (await encoder.explain(record, model="m", redact=True)).model == "m"
