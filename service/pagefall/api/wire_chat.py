"""`/v1/chat/completions` on the wire, and what it means to the engine."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pagefall.api.no_ops import NoOps, refuse_unsupported
from pagefall.api.structured_output import answer_constraint
from pagefall.api.wire_sampling import (
    SAMPLING_NO_OPS,
    NumTokens,
    NumTopLogprobs,
    SamplingFields,
    sampling_params,
    stop_strings,
    stop_token_ids,
)
from pagefall.api.wire_usage import WireUsage
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, ModelCard


class ContentPart(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class WireMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None

    tool_calls: Any = None
    tool_call_id: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None
    reasoning_content: Any = None


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's request; `add_generation_prompt`, `continue_final_message` and `chat_template_kwargs` as in SGLang."""

    messages: list[WireMessage]
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    parallel_tool_calls: Any = None

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


_NO_OPS: Final[NoOps] = {
    **SAMPLING_NO_OPS,
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_MESSAGE_NO_OPS: Final[NoOps] = {
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "refusal": ("",),
    "audio": (),
    "annotations": ([],),
    "reasoning_content": ("",),
}

_PART_SEPARATOR: Final = "\n"
"""Between the text parts of one message, which templates expect as one string."""


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprobs, frozen=True, kw_only=True):
    top_logprobs: list[TokenLogprobs]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: WireUsage | UnsetType | None = UNSET


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: WireUsage


def chat_request(body: ChatCompletionRequest, card: ModelCard, request_id: RequestId) -> GenerateRequest:
    """Raises `RequestError` naming the first field that is wrong or not supported."""
    refuse_unsupported(body, _NO_OPS)
    return GenerateRequest(
        request_id=request_id,
        prompt=chat_prompt(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            template_kwargs=body.chat_template_kwargs or {},
        ),
        sampling=sampling_params(body, card, num_top_logprobs=_num_top_logprobs(body)),
        max_tokens=_max_tokens(body),
        stop=stop_strings(body),
        stop_token_ids=stop_token_ids(body, card),
        ignore_eos=bool(body.ignore_eos),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        constraint=answer_constraint(body),
    )


def chat_prompt(
    messages: list[WireMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
) -> ChatPrompt:
    """`add_generation_prompt` None means: unless the final message is to be continued."""
    if not messages:
        raise RequestError("'messages' must have at least one message.", param="messages", code="empty_array")
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "'continue_final_message' continues the last turn and 'add_generation_prompt' begins a new one: "
            "send only one of them.",
            param="continue_final_message",
        )
    return ChatPrompt(
        messages=tuple(_message(message, f"messages[{i}]") for i, message in enumerate(messages)),
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def _message(message: WireMessage, path: str) -> ChatMessage:
    refuse_unsupported(message, _MESSAGE_NO_OPS, path=f"{path}.")
    match message.role:
        case "system" | "user" | "assistant":
            role = message.role
        case "developer":
            role = "system"  # the newer name of the same instructions; templates know only the older
        case _:
            raise RequestError(
                f"Unsupported value: '{path}.role' must be 'system', 'developer', 'user' or 'assistant'.",
                param=f"{path}.role",
                code="unsupported_value",
            )
    match message.content:
        case str(text):
            content = text
        case None if role == "assistant":
            content = ""
        case None:
            raise RequestError(
                f"Missing required parameter: '{path}.content' of a {message.role} message must be text.",
                param=f"{path}.content",
                code="missing_required_parameter",
            )
        case parts:
            content = _PART_SEPARATOR.join(_text(part, f"{path}.content[{i}]") for i, part in enumerate(parts))
    return ChatMessage(role, content, message.name)


def _text(part: ContentPart, path: str) -> str:
    if part.type != "text":
        raise RequestError(
            f"Unsupported value: '{path}.type' must be 'text', this server has no other kind of content.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    if part.text is None:
        raise RequestError(
            f"Missing required parameter: '{path}.text'.", param=f"{path}.text", code="missing_required_parameter"
        )
    return part.text


def _max_tokens(body: ChatCompletionRequest) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens in (None, body.max_tokens):
        return body.max_completion_tokens or body.max_tokens
    raise RequestError(
        "'max_tokens' and 'max_completion_tokens' contradict each other: send only 'max_completion_tokens'.",
        param="max_tokens",
    )


def _num_top_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None
