"""`/v1/messages` on the wire: Anthropic's request, answer and events. Unknown fields are ignored, as they are there."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pagefall.api.wire_sampling import NumTokens, StopString


class CacheControl(msgspec.Struct, kw_only=True):
    """Keeps the prompt through the block that has it in the cache for a time."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class WireBlock(msgspec.Struct, kw_only=True):
    """Of any type; which fields matter depends on it."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    cache_control: CacheControl | None = None


class WireTurn(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[WireBlock]


class WireClientTool(msgspec.Struct, kw_only=True):
    """`type` is `custom` or absent; all others are tools of Anthropic's own."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolUseChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingChoice(msgspec.Struct, kw_only=True):
    """`budget_tokens` cannot be kept: `max_tokens` is the only limit."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """All that the prompt is made of. `chat_template_kwargs` as in chat."""

    model: str | None = None
    messages: list[WireTurn]
    system: str | list[WireBlock] | None = None
    tools: list[WireClientTool] | None = None
    tool_choice: ToolUseChoice | None = None
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    container: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    thread: Any = None

    # Wishes that change nothing about an answer: these are ignored.
    billing_policy: Any = None
    context_management: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Anthropic's request; `min_p`, `seed`, `cache_salt` and `priority` as in chat."""

    max_tokens: NumTokens
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    metadata: Any = None
    service_tier: Any = None
    diagnostics: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    inference_geo: Any = None


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The three kinds of input add up to the prompt. `cache_creation_input_tokens`: those through the last
    `cache_control` that were not cached; `input_tokens`: all others that were not.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """Its `signature` is empty: a thought that comes back is believed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[AnswerBlock, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_start"):
    message: MessageAnswer


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="ping"):
    pass


class BlockStart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputPiece(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextPiece | ThinkingPiece | InputPiece


class BlockStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct, frozen=True, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_delta"):
    delta: StopDelta
    usage: MessagesUsage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_stop"):
    pass


MessageEvent = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
