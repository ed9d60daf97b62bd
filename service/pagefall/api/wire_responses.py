"""`/v1/responses` on the wire: the request and the response. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pagefall.api.structured_output import JsonObjectFormat, Schema, SchemaName, TextFormat
from pagefall.api.wire_sampling import NumTokens, NumTopLogprobs, Penalty, StopString

Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class WirePart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class WireItem(msgspec.Struct, kw_only=True):
    """Of any type; which fields matter depends on it. Without a type it is a message."""

    type: str = "message"
    id: str | None = None
    role: str | None = None
    content: str | list[WirePart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[WirePart] | None = None
    summary: list[WirePart] | None = None


class WireResponsesTool(msgspec.Struct, kw_only=True):
    """`strict` absent is false here: the model then writes arguments as it likes."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class WireResponsesChoice(msgspec.Struct, kw_only=True):
    """`{"type": "function", "name": ...}` or `{"type": "allowed_tools", "mode": ..., "tools": [...]}`."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[WireResponsesTool] | None = None


class ResponsesSchemaFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """As chat's, without a level of its own."""

    name: SchemaName
    description: str | None = None
    schema: Schema
    strict: bool | None = None


class TextSettings(msgspec.Struct, kw_only=True):
    format: TextFormat | JsonObjectFormat | ResponsesSchemaFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(msgspec.Struct, kw_only=True):
    """`effort` is told to the chat template. Thoughts are given whole, so there is no `summary` of them."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesPromptFields(msgspec.Struct, kw_only=True):
    """All that the prompt is made of."""

    model: str | None = None
    input: str | list[WireItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[WireResponsesTool] | None = None
    tool_choice: str | WireResponsesChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    conversation: Any = None
    prompt: Any = None
    personality: Any = None


class ResponsesRequest(ResponsesPromptFields, kw_only=True):
    """OpenAI's request; from `top_k` to `priority` as in chat."""

    max_output_tokens: NumTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: NumTopLogprobs | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: Any = None
    store: bool | None = None
    metadata: Annotated[Metadata, Meta(max_length=16)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    context_management: Any = None
    access_programs: Any = None
    background_options: Any = None
    image: Any = None

    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=64)] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None

    background: Any = None
    moderation: Any = None
    max_tokens: Any = None
    messages: Any = None
    response_format: Any = None


Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponseTopLogprob]


class ResponseTopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[ResponseLogprob, ...] = ()


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The whole thought is its `content`; nothing is encrypted, nothing summed up."""

    id: str
    status: Status
    summary: tuple[()] = ()
    content: tuple[ReasoningText, ...]
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class ResponsesUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, as it was understood, and what came of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: Literal[False] = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextSettings
    tool_choice: str | WireResponsesChoice
    tools: list[WireResponsesTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None
    metadata: Metadata


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokenCount(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
