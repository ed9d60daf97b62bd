"""What a diagnosis is made from: one observation a request, in the order of their arrival."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from pagefall.messages import PrefixReport, TokenIds
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt


class Observation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request. `time` is Unix seconds, `tools` the tool schemas as JSON, in the order in which they were sent.

    `prompt` is None where token ids were sent; `report` where no server has counted; `worker` where it is not known.
    """

    token_ids: TokenIds
    prompt: ChatPrompt | TextPrompt | None = None
    tools: Any = None
    time: float | None = None
    cache_salt: str = ""
    worker: str | None = None
    report: PrefixReport | None = None


class Capacities(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the tiers in pages; None: no such tier, or one of unknown size. `has_storage`: there is a store, whose
    size, if `storage_pages` is None, is without limit as far as is known.
    """

    device_pages: int | None = None
    host_pages: int | None = None
    storage_pages: int | None = None
    has_storage: bool = False

    @property
    def largest(self) -> int | None:
        """Pages that some tier has, None where no size is known. Lower tiers hold copies of what is above them."""
        sizes = [size for size in (self.device_pages, self.host_pages, self.storage_pages) if size is not None]
        return max(sizes, default=None)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known. `num_earlier_tokens`: of prompts before these, which are not known any more.
    `seconds_per_token`: of computing a prompt.
    """

    observations: Sequence[Observation]
    page_size: int
    capacities: Capacities = Capacities()
    seconds_per_token: float | None = None
    num_earlier_tokens: int = 0


class Section(msgspec.Struct, frozen=True):
    """A piece of a prompt: a message, the tools before the messages, or the whole of a prompt without messages.

    `content` of a message is its `message_text`. `message_index` is None for the latter two.
    """

    role: str | None
    content: str
    message_index: int | None


def sections(observation: Observation) -> tuple[Section, ...]:
    """The prompt's pieces in the order in which templates write them. A prompt of token ids is one text with a
    character for each token, which no real text is mistaken for.
    """
    match observation.prompt:
        case ChatPrompt(messages=messages):
            parts = [Section(message.role, message_text(message), index) for index, message in enumerate(messages)]
        case TextPrompt(text):
            parts = [Section(None, text, None)]
        case None:
            parts = [Section(None, token_text(observation.token_ids), None)]
    if observation.tools is None:
        return tuple(parts)
    return Section("tools", msgspec.json.encode(observation.tools).decode(), None), *parts


def message_text(message: ChatMessage) -> str:
    """Its content, and behind that a line for each call, without its id, which few templates write."""
    if not message.tool_calls:
        return message.content
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls)


_TOKEN_BASE = 0xF0000
"""Private use planes: 131,072 characters that no text means anything by."""
_TOKEN_SPAN = 0x10FFFF - _TOKEN_BASE
_TOKENS_ONLY = re.compile(rf"[{chr(_TOKEN_BASE)}-{chr(0x10FFFF)}]+")


def token_text(token_ids: TokenIds) -> str:
    """Each token as a character of a private use plane; ids more than 131,070 apart may share one."""
    return (token_ids % _TOKEN_SPAN + _TOKEN_BASE).astype("<u4").tobytes().decode("utf-32-le")


def is_token_text(text: str) -> bool:
    """Whether `text` is what `token_text` made, or a part of it."""
    return _TOKENS_ONLY.fullmatch(text) is not None


def shown_tokens(text: str) -> str:
    """`text`, made by `token_text`, for people."""
    return "tokens " + " ".join(str(ord(character) - _TOKEN_BASE) for character in text)
