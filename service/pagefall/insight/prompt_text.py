"""A prompt as text, and where in it a token begins."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pagefall.errors import RequestError
from pagefall.insight.diagnosis.alignment import common_head
from pagefall.messages import TokenIds
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt, Tool
from pagefall.text.tokenizer import EncodedText

_MAX_TOKENS_OF_A_CHARACTER: Final = 16
"""And of those before it that cannot be decoded while it is cut."""


class PromptTokenizer(Protocol):
    """What explaining needs of a `text.tokenizer.Tokenizer`. It may be called on any thread."""

    def decode(self, token_ids: Sequence[int] | TokenIds, *, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode_with_spans(self, text: str, *, add_special_tokens: bool) -> EncodedText: ...

    def apply_chat_template(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = ...,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] = ...,
    ) -> str: ...


class PromptText:
    """`text` is what was encoded: what the client sent, or what the chat template made of it.

    `is_decoded`: it was made from the token ids instead. So it is where the client sent token ids, and where the
    template does not say the same as it did then, for example because it writes the date.
    """

    def __init__(self, text: str, token_ids: TokenIds, tokenizer: PromptTokenizer, spans: EncodedText | None) -> None:
        """`spans` None: decoding any head of `token_ids` gives a head of `text`. Made by `prompt_text`."""
        self.text = text
        self.is_decoded = False
        self._token_ids = token_ids
        self._tokenizer = tokenizer
        self._spans = spans

    def character_of(self, token_index: int) -> int:
        """Where in `text` the token begins; within a character, where that begins. The text's length after the last."""
        if token_index >= len(self._token_ids):
            return len(self.text)
        if self._spans is None:
            return self._length_of(token_index)
        span = self._spans.span(token_index)
        # Spaces that a span leaves out are the token's that follows them.
        end = next((before[1] for i in range(token_index - 1, -1, -1) if (before := self._spans.span(i))), 0)
        return end if span is None else min(span[0], end)

    def _length_of(self, num_tokens: int) -> int:
        """The whole characters that the first tokens stand for."""
        for end in range(num_tokens, max(-1, num_tokens - _MAX_TOKENS_OF_A_CHARACTER), -1):
            head = decoded(self._tokenizer, self._token_ids[:end])
            if self.text.startswith(head):  # not where a character is cut
                return len(head) + len(characters(self._tokenizer, self._token_ids[end:num_tokens]))
        return common_head(decoded(self._tokenizer, self._token_ids[:num_tokens]), self.text)


def prompt_text(prompt: ChatPrompt | TextPrompt | None, token_ids: TokenIds, tokenizer: PromptTokenizer) -> PromptText:
    """The text of a prompt that was encoded to `token_ids`; None: the client sent these."""
    whole = decoded(tokenizer, token_ids)
    sent = None if prompt is None else _sent(prompt, tokenizer)
    if sent is not None and sent != whole:
        # A normalizer, or tokens that stand for no text: then decoding does not lead back, but encoding again does.
        spans = tokenizer.encode_with_spans(
            sent, add_special_tokens=isinstance(prompt, TextPrompt) and prompt.add_special_tokens
        )
        if spans.token_ids.tobytes() == token_ids.tobytes():
            return PromptText(sent, token_ids, tokenizer, spans)
    result = PromptText(whole, token_ids, tokenizer, None)
    result.is_decoded = sent != whole
    return result


def decoded(tokenizer: PromptTokenizer, token_ids: Sequence[int] | TokenIds) -> str:
    """The text as a whole, with special tokens. Bytes that are no character, as of one that is cut, are U+FFFD."""
    return tokenizer.decode(token_ids, skip_special_tokens=False)


def characters(tokenizer: PromptTokenizer, token_ids: Sequence[int] | TokenIds) -> str:
    """What a few tokens stand for after other text. A character that is cut at the end is left out; one that is cut at
    the beginning is U+FFFD.
    """
    text = b"".join(tokenizer.token_bytes(int(token_id)) for token_id in token_ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(text)


def _sent(prompt: ChatPrompt | TextPrompt, tokenizer: PromptTokenizer) -> str | None:
    """None where the template refuses today what it took when the request came."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    try:
        return render(prompt, prompt.messages, tokenizer)
    except RequestError:
        return None


def render(prompt: ChatPrompt, messages: Sequence[ChatMessage], tokenizer: PromptTokenizer) -> str:
    """`messages` in the way that `prompt` asks for. Raises `RequestError` where the template refuses."""
    return tokenizer.apply_chat_template(
        messages,
        tools=prompt.tools,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        template_kwargs=prompt.template_kwargs,
    )
