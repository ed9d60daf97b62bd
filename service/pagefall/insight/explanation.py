"""Why a request's prompt was not taken from the cache as a whole, for people. Made when somebody asks, off the loop."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.insight.chat_layout import MessagePart, Place, chat_layout
from pagefall.insight.difference import Difference, Snippet, difference
from pagefall.insight.prompt_text import PromptTokenizer, prompt_text
from pagefall.insight.records import AbortReason, RequestRecord
from pagefall.insight.sentences import Sentences, sentences
from pagefall.messages import (
    EvictionCause,
    FinishReason,
    MissedPages,
    MissReason,
    RequestId,
    Tier,
    TokenSource,
)
from pagefall.text.requests import ChatPrompt

RequestState = Literal["queued", "running", "ended"]
"""`queued`: it waits, or its prompt is being computed. `running`: it has its first token."""


class ExplainedDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt left the nearest known path.

    `token_index`, `has_other`, `is_cached` and `other_request_id` are as in `messages.Divergence`. `character` is the
    first of the prompt's text that differs, `is_same_text` as in `Difference`. `is_decoded_text`: that text was made
    from the token ids, as these were sent, or as rendering the messages again gave others.

    The `message_` fields are None but for a chat; `message_character` counts in the content as it was sent, and is None
    in the template's own text. `snippet` is None where prompts are redacted.
    """

    token_index: int
    has_other: bool
    is_cached: bool
    other_request_id: RequestId | None
    character: int
    is_same_text: bool
    is_decoded_text: bool
    message_index: int | None = None
    message_role: str | None = None
    message_part: MessagePart | None = None
    message_character: int | None = None
    snippet: Snippet | None = None


class ExplainedMiss(msgspec.Struct, frozen=True, kw_only=True):
    """A run of pages that were not cached, as in `messages.MissedPages`; a sentence about it, and what can be done.

    `advice` is None where nothing can be, or need be, done.
    """

    reason: MissReason
    first_token: int
    num_tokens: int
    first_page: int
    num_pages: int
    explanation: str
    advice: str | None = None
    tier: Tier | None = None
    seconds_ago: float | None = None
    cause: EvictionCause | None = None
    load_seconds: float | None = None
    compute_seconds: float | None = None
    detail: str | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One request's account. `time` is Unix time in seconds. What is not known yet is None, or empty.

    `num_tokens_by_source` adds up to `num_prompt_tokens`; `num_known_tokens` is what a cache of unlimited size would
    have given. `total_seconds` is from its arrival to its end.
    """

    request_id: RequestId
    http_request_id: str | None
    model: str
    time: float
    state: RequestState
    finish_reason: FinishReason | None
    abort_reason: AbortReason | None
    is_settled: bool
    """Whether it is known where the prompt's tokens came from; until then there are no divergence and no misses."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_known_tokens: int
    num_generated_tokens: int
    num_tokens_by_source: dict[TokenSource, int]
    page_size: int | None
    ttft_seconds: float | None
    total_seconds: float | None
    queue_seconds: float | None
    saved_seconds: float
    divergence: ExplainedDivergence | None
    misses: tuple[ExplainedMiss, ...]


def explain(record: RequestRecord, tokenizer: PromptTokenizer, *, model: str, redact: bool) -> Explanation:
    """`record` as it is now. Takes milliseconds, for long prompts tens of them. `redact`: no text, only positions."""
    report = record.report
    divergence = _explain_divergence(record, tokenizer, redact=redact)
    place = None if divergence is None else where(divergence)
    is_same_text = divergence is not None and divergence.is_same_text
    misses = (
        ()
        if report is None
        else tuple(
            _explain_miss(miss, sentences(miss, where=place, is_same_text=is_same_text), report.page_size)
            for miss in report.misses
        )
    )
    return Explanation(
        request_id=record.request_id,
        http_request_id=record.http_request_id,
        model=model,
        time=record.arrived_at,
        state=state_of(record),
        finish_reason=record.finish_reason,
        abort_reason=record.abort_reason,
        is_settled=report is not None,
        num_prompt_tokens=record.num_prompt_tokens,
        num_cached_tokens=0 if report is None else num_cached_tokens(report.num_tokens_by_source),
        num_known_tokens=0 if report is None else report.num_known_tokens,
        num_generated_tokens=record.num_generated_tokens,
        num_tokens_by_source={} if report is None else report.num_tokens_by_source,
        page_size=None if report is None else report.page_size,
        ttft_seconds=record.ttft_seconds,
        total_seconds=record.total_seconds,
        queue_seconds=None if report is None else report.queue_seconds,
        saved_seconds=0.0 if report is None else report.saved_seconds,
        divergence=divergence,
        misses=misses,
    )


def state_of(record: RequestRecord) -> RequestState:
    if record.ended_at is not None:
        return "ended"
    return "queued" if record.first_token_at is None else "running"


def num_cached_tokens(num_tokens_by_source: dict[TokenSource, int]) -> int:
    """Those that came from any tier."""
    return sum(num_tokens_by_source.get(tier, 0) for tier in ("device", "host", "storage"))


def where(divergence: ExplainedDivergence) -> str:
    """The point in words, after "at token 17": `, in messages[1] (user), character 27`."""
    match divergence.message_part:
        case None:
            return f", character {divergence.character} of the prompt"
        case "generation_prompt":
            return ", after the last message"
        case "template":
            return f", in the template's text before messages[{divergence.message_index}] ({divergence.message_role})"
        case "content":
            at = "" if divergence.message_character is None else f", character {divergence.message_character}"
            return f", in messages[{divergence.message_index}] ({divergence.message_role}){at}"


def _explain_divergence(
    record: RequestRecord, tokenizer: PromptTokenizer, *, redact: bool
) -> ExplainedDivergence | None:
    divergence = None if record.report is None else record.report.divergence
    if divergence is None:
        return None
    text = prompt_text(record.prompt, record.token_ids, tokenizer)
    found: Difference = difference(divergence, text, record.token_ids, tokenizer)
    explained = ExplainedDivergence(
        token_index=divergence.token_index,
        has_other=divergence.has_other,
        is_cached=divergence.is_cached,
        other_request_id=divergence.other_request_id,
        character=found.character,
        is_same_text=found.is_same_text,
        is_decoded_text=text.is_decoded,
        snippet=None if redact else found.snippet,
    )
    if not isinstance(record.prompt, ChatPrompt):
        return explained
    place: Place = chat_layout(record.prompt, text.text, tokenizer).place(found.character)
    return msgspec.structs.replace(
        explained,
        message_index=place.index,
        message_role=None if place.index is None else record.prompt.messages[place.index].role,
        message_part=place.part,
        message_character=place.character,
    )


def _explain_miss(miss: MissedPages, said: Sentences, page_size: int) -> ExplainedMiss:
    return ExplainedMiss(
        reason=miss.reason,
        first_token=miss.first_page * page_size,
        num_tokens=miss.num_tokens,
        first_page=miss.first_page,
        num_pages=miss.num_pages,
        explanation=said.explanation,
        advice=said.advice,
        tier=miss.tier,
        seconds_ago=miss.seconds_ago,
        cause=miss.cause,
        load_seconds=miss.load_seconds,
        compute_seconds=miss.compute_seconds,
        detail=miss.detail,
    )
