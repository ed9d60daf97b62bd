"""The events of a streamed response, each with its number in the stream from 0."""

from __future__ import annotations

import msgspec

from pagefall.api.wire_responses import OutputItem, OutputText, ReasoningText, Response, ResponseLogprob


class ResponseEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """`sequence_number` is set when it is sent."""

    sequence_number: int = 0


class Created(ResponseEvent, kw_only=True, tag="response.created"):
    response: Response


class InProgress(ResponseEvent, kw_only=True, tag="response.in_progress"):
    response: Response


class Completed(ResponseEvent, kw_only=True, tag="response.completed"):
    response: Response


class Incomplete(ResponseEvent, kw_only=True, tag="response.incomplete"):
    response: Response


class Failed(ResponseEvent, kw_only=True, tag="response.failed"):
    response: Response


class ItemEvent(ResponseEvent, kw_only=True):
    """About item `output_index` of the response."""

    output_index: int


class ItemAdded(ItemEvent, kw_only=True, tag="response.output_item.added"):
    item: OutputItem


class ItemDone(ItemEvent, kw_only=True, tag="response.output_item.done"):
    item: OutputItem


class InItem(ItemEvent, kw_only=True):
    """About what is in the item with this id."""

    item_id: str


class ArgumentsDelta(InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(InItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InContent(InItem, kw_only=True):
    """Every item has one part, number 0."""

    content_index: int = 0


class PartAdded(InContent, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(InContent, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class OutputTextDelta(InContent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[ResponseLogprob, ...]


class OutputTextDone(InContent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[ResponseLogprob, ...]


class ReasoningDelta(InContent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(InContent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


StreamedResponseEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | ArgumentsDelta
    | ArgumentsDone
    | PartAdded
    | PartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningDelta
    | ReasoningDone
)
"""All that a stream has."""
