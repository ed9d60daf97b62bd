"""What routing wants to know of a request's body, read leniently: whatever is wrong with it, the worker says it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar, assert_never

import msgspec
from msgspec import Meta

from pagefall.api import messages_request, responses_request
from pagefall.api.responses_prompt import input_items
from pagefall.api.wire_chat import WireMessage, chat_prompt
from pagefall.api.wire_messages import CountTokensRequest
from pagefall.api.wire_responses import ResponsesPromptFields
from pagefall.errors import RequestError
from pagefall.text.requests import Prompt, TextPrompt, TokenPrompt

T = TypeVar("T")

_TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_WirePrompt: Any = str | list[str | _TokenId | list[_TokenId]]

Endpoint = Literal["chat", "completions", "messages", "responses", "other"]

_MAX_TEXT: Final = 1 << 20
"""Bytes of a prompt that stand for it where it cannot be tokenised."""

_UNLIKE_OURS: Final = ("tools", "functions", "documents")
"""They change what a chat template writes, in ways that only the worker's own engine knows."""


_PROMPT_FIELDS: Final = ("system", "instructions", "messages", "input", "prompt")
"""What prompts are made of, in the order in which templates write it."""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt` None: none that could be tokenised here. Only the worker that keeps `previous_response_id` can go on."""

    model: str | None = None
    prompt: Prompt | None = None
    cache_salt: str = ""
    user: str = ""
    max_tokens: int | None = None
    stream: bool = False
    previous_response_id: str | None = None


class _Fields(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    user: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    max_output_tokens: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: msgspec.Raw = msgspec.Raw()
    continue_final_message: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    functions: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()


def read_body(body: bytes, endpoint: Endpoint) -> Body:
    """Never fails: what is not understood is left out."""
    fields = _as(body, _Fields)
    if fields is None:
        return Body()
    return Body(
        model=_as(fields.model, str),
        prompt=_prompt(body, fields, endpoint),
        cache_salt=_as(fields.cache_salt, str) or "",
        user=_as(fields.user, str) or "",
        max_tokens=_as(fields.max_completion_tokens, int)
        or _as(fields.max_output_tokens, int)
        or _as(fields.max_tokens, int),
        stream=bool(_as(fields.stream, bool)),
        previous_response_id=_as(fields.previous_response_id, str),
    )


def prompt_text(body: bytes) -> str:
    """What stands for the prompt where it cannot be tokenised: the same for the same prompt.

    It is the JSON itself, without the end of the list of messages: the next turn of a conversation begins with it.
    """
    fields = _as(body, _Fields)
    if fields is None:
        return _text(body)
    parts = [bytes(getattr(fields, name)) for name in (*_UNLIKE_OURS, *_PROMPT_FIELDS)]
    return _text(b"".join(parts).rstrip(b"] \t\r\n"))


def _prompt(body: bytes, fields: _Fields, endpoint: Endpoint) -> Prompt | None:
    if endpoint == "completions":
        return _completion(fields.prompt)
    if any(bytes(getattr(fields, name)) not in (b"", b"null", b"[]") for name in _UNLIKE_OURS):
        return None
    match endpoint:
        case "chat":
            return _chat(fields)
        case "messages":
            return _messages(body)
        case "responses":
            return _response(body)
        case "other":
            return None
        case _:
            assert_never(endpoint)


def _messages(body: bytes) -> Prompt | None:
    wire = _as(body, CountTokensRequest)
    try:
        return None if wire is None else messages_request.prompt_of(wire)[0]
    except RequestError:
        return None


def _response(body: bytes) -> Prompt | None:
    """None for one that goes on from another: only the worker that made that one has the conversation."""
    wire = _as(body, ResponsesPromptFields)
    if wire is None or wire.previous_response_id is not None:
        return None
    try:
        return responses_request.prompt_of(wire, (), input_items(wire.input or ()))
    except RequestError:
        return None


def _chat(fields: _Fields) -> Prompt | None:
    messages = _as(fields.messages, list[WireMessage])
    if messages is None:
        return None
    try:
        return chat_prompt(
            messages,
            add_generation_prompt=_as(fields.add_generation_prompt, bool),
            continue_final_message=bool(_as(fields.continue_final_message, bool)),
            template_kwargs=_as(fields.chat_template_kwargs, dict[str, Any]) or {},
        )
    except RequestError:
        return None


def _completion(raw: msgspec.Raw) -> Prompt | None:
    """Of several prompts the first one."""
    wire: Any = _as(raw, _WirePrompt)
    first = wire[0] if isinstance(wire, list) and wire and not isinstance(wire[0], int) else wire
    if isinstance(first, str):
        return TextPrompt(first) if first else None
    if isinstance(first, list) and first and all(isinstance(token_id, int) for token_id in first):
        return TokenPrompt(tuple(first))
    return None


def _text(content: bytes) -> str:
    return content[:_MAX_TEXT].decode("utf-8", "replace")


def _as(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """None for what is absent, null or of another type."""
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
