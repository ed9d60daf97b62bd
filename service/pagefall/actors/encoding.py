"""Prompts become token ids without holding up the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, TypeVar, assert_never

import numpy as np

from pagefall.actors.refusals import unavailable
from pagefall.insight.explanation import Explanation, explain
from pagefall.insight.records import RequestRecord
from pagefall.messages import TokenIds
from pagefall.text.answer_memory import AnswerMemory, EncodedPrompt, PromptKey
from pagefall.text.encoding_cache import EncodingCache
from pagefall.text.prefix_lengths import pinned_prefixes
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from pagefall.text.tokenizer import Tokenizer

T = TypeVar("T")

_LARGE: Final = 1000
"""More characters or ids than this may take over a millisecond on a busy machine."""

_HUGE: Final = 1 << 30
"""Of what is never encoded on the loop."""

_SIZE_OF_TURN: Final = 20
"""Characters that a message, and a call in one, counts as beside its own: the template's, and what running it takes."""

_NUM_THREADS: Final = 2
"""Encoding leaves the interpreter free, but competes with the model for cores."""


_MAX_EXPLANATIONS: Final = 4
"""They share the threads with prompts, which must not wait long for them."""


class _Shared:
    """A prompt that is being encoded, for all who have this very prompt. They have one salt, too."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.encoded: EncodedPrompt | None = None
        self.num_waiting = 0


class PromptEncoder:
    """Encodes small prompts at once and large ones on a few threads of its own. Used as a context manager."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_waiting: int,
        end_token_ids: Set[int] = frozenset(),
        max_inline: int = _LARGE,
    ) -> None:
        """`end_token_ids` are those that end an answer. Without any, no answer is remembered. `max_inline`: prompts of
        up to so many characters or ids are encoded on the loop; a thread costs more than they do.
        """
        self._tokenizer = tokenizer
        self._max_inline = max_inline
        self._encodings = EncodingCache(tokenizer)
        self._answers = AnswerMemory(tokenizer, self._encodings, end_token_ids)
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._num_explaining = 0
        self._shared: dict[int, _Shared] = {}
        """By the identity of the prompt, while anyone waits for it."""
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="prompt-encoder")

    def __enter__(self) -> PromptEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def encode(self, prompt: Prompt, salt: str = "") -> TokenIds:
        """Raises `RequestError`: 400 where the chat template refuses, 503 where `max_waiting` others are in line."""
        return await self._perform(partial(self._encode, prompt, salt), size=_size(prompt))

    async def encode_with_history(self, prompt: Prompt, salt: str) -> EncodedPrompt:
        """As `encode`; answers of this server in a chat have the tokens that were sampled, and its key is for
        `remember`. A large prompt that several requests have in common (the choices of one, say) is encoded once.
        """
        if _size(prompt) <= self._max_inline:
            return await self._encode_with_history(prompt, salt)
        shared = self._shared.setdefault(id(prompt), _Shared())
        shared.num_waiting += 1
        try:
            async with shared.lock:
                if shared.encoded is None:
                    shared.encoded = await self._encode_with_history(prompt, salt)
                return shared.encoded
        finally:
            shared.num_waiting -= 1
            if not shared.num_waiting:
                del self._shared[id(prompt)]

    async def _encode_with_history(self, prompt: Prompt, salt: str) -> EncodedPrompt:
        if not isinstance(prompt, ChatPrompt):
            return EncodedPrompt(await self.encode(prompt, salt), None)
        work = partial(self._encode_chat, prompt, salt)
        return await self._perform(work, size=_size(prompt))

    async def pinned(self, request: GenerateRequest, token_ids: TokenIds) -> tuple[tuple[int, float], ...]:
        """What of the prompt, which is `token_ids`, the request's pins keep: tokens, and for how many seconds. Raises
        `RequestError` like `encode`.
        """
        if not request.pins or not isinstance(request.prompt, ChatPrompt):
            return ()

        def encode(part: ChatPrompt) -> TokenIds:
            return self._encode_chat(part, request.cache_salt).token_ids

        work = partial(pinned_prefixes, request.prompt, token_ids, request.pins, encode)
        return await self._perform(work, size=_size(request.prompt))

    def remember(self, key: PromptKey, token_ids: Sequence[int]) -> None:
        """The whole answer to the prompt of `key`, without the token that ended it. Unless it is long, the very next
        prompt may have it already.
        """
        remember = partial(self._answers.remember, key, np.array(token_ids, dtype=np.uint32))
        if len(token_ids) <= _LARGE:
            remember()
        else:
            self._threads.submit(remember)

    def forget_answers(self) -> None:
        """From now on every prompt has the tokens that the tokenizer makes of it, until there are new answers. What it
        made of parts of prompts is forgotten, too: they take as long as at first.
        """
        self._answers.clear()
        self._encodings.clear()

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included. Raises `RequestError` like `encode`."""
        decode = partial(self._tokenizer.decode, token_ids, skip_special_tokens=False)
        return await self._perform(decode, size=len(token_ids))

    def echo(self, prompt: Prompt, token_ids: TokenIds) -> str:
        """The prompt as text: as it came, or where ids came, what they say."""
        return prompt.text if isinstance(prompt, TextPrompt) else self._tokenizer.decode(token_ids)

    async def explain(self, record: RequestRecord, *, model: str, redact: bool) -> Explanation:
        """As `insight.explanation.explain`, on a thread. Raises `RequestError` (503) where four are under way."""
        if self._num_explaining >= _MAX_EXPLANATIONS:
            raise unavailable(f"{_MAX_EXPLANATIONS} explanations are under way")
        work = partial(explain, replace(record), self._tokenizer, model=model, redact=redact)
        self._num_explaining += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_explaining -= 1

    async def _perform(self, work: Callable[[], T], *, size: int) -> T:
        if size <= self._max_inline:
            return work()
        if self._num_waiting >= self._max_waiting:
            raise unavailable(f"{self._num_waiting} long prompts wait to be encoded")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_waiting -= 1

    def _encode(self, prompt: Prompt, salt: str) -> TokenIds:
        match prompt:
            case TokenPrompt():
                return np.array(prompt.token_ids, dtype=np.uint32)
            case TextPrompt():
                return self._tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)
            case ChatPrompt():
                return self._encodings.encode(self._render(prompt), salt)
            case _:
                assert_never(prompt)

    def _encode_chat(self, prompt: ChatPrompt, salt: str) -> EncodedPrompt:
        return self._answers.encode(self._render(prompt), salt)

    def _render(self, prompt: ChatPrompt) -> str:
        return self._tokenizer.apply_chat_template(
            prompt.messages,
            tools=prompt.tools,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            template_kwargs=prompt.template_kwargs,
        )


def _size(prompt: Prompt) -> int:
    match prompt:
        case TokenPrompt():
            return len(prompt.token_ids)
        case TextPrompt():
            return len(prompt.text)
        case ChatPrompt():
            return _HUGE if prompt.tools else sum(map(_message_size, prompt.messages))  # tools are seldom small
        case _:
            assert_never(prompt)


def _message_size(message: ChatMessage) -> int:
    """As `_SIZE_OF_TURN` says, even an empty one takes the template's time and the tokenizer's."""
    texts = (message.content, message.name, message.reasoning_content, message.tool_call_id)
    calls = sum(_SIZE_OF_TURN + len(call.name) + len(call.arguments) for call in message.tool_calls)
    return _SIZE_OF_TURN + sum(len(text) for text in texts if text) + calls
