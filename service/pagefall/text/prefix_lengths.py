"""How many tokens of a chat prompt its first messages are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pagefall.common_tokens import num_common_tokens
from pagefall.errors import RequestError
from pagefall.messages import TokenIds
from pagefall.text.requests import ChatMessage, ChatPrompt, PinRequest

_PROBE = ChatMessage("user", "\N{BLACK SQUARE}")
"""Stands for what may follow: templates write nothing without a user's message."""


def pinned_prefixes(
    prompt: ChatPrompt, token_ids: TokenIds, pins: Sequence[PinRequest], encode: Callable[[ChatPrompt], TokenIds]
) -> tuple[tuple[int, float], ...]:
    """For each pin how many of the prompt's `token_ids` it keeps, and for how many seconds.

    One that keeps none is left out. `encode` renders a prompt and encodes it, and may raise `RequestError`.
    """
    lengths = ((_prefix_length(prompt, token_ids, pin.num_messages, encode), pin.ttl_seconds) for pin in pins)
    return tuple((length, seconds) for length, seconds in lengths if length)


def _prefix_length(
    prompt: ChatPrompt, token_ids: TokenIds, num_messages: int, encode: Callable[[ChatPrompt], TokenIds]
) -> int:
    """The tokens that the prompt shares with any that has the same first messages. 0 where the template writes no
    conversation of these.
    """
    head = prompt.messages[:num_messages]
    for messages in (head, (*head, _PROBE)):
        if not messages:
            continue
        part = msgspec.structs.replace(
            prompt, messages=messages, add_generation_prompt=False, continue_final_message=False
        )
        try:
            return num_common_tokens(token_ids, encode(part))
        except RequestError:  # it may be that the template wants a user's message
            continue
    return 0
