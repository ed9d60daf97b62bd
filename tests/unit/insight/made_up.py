"""Requests with reports that nobody measured: where a prompt left another is what two encoded texts say."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from pagefall.insight.explanation import ExplainedDivergence, explain
from pagefall.insight.records import RequestRecord
from pagefall.messages import Divergence, MissedPages, PrefixReport, RequestId, TokenIds
from pagefall.text.requests import ChatMessage, ChatPrompt, TextPrompt
from pagefall.text.tokenizer import Tokenizer

PAGE_SIZE = 16


def chat(*contents: str, **settings: Any) -> ChatPrompt:
    """System, user, assistant, user, ..."""
    roles = ["system", *("user", "assistant") * len(contents)]
    return ChatPrompt(
        messages=tuple(ChatMessage(role, content) for role, content in zip(roles, contents, strict=False)), **settings
    )


def encoded(prompt: ChatPrompt | TextPrompt, tokenizer: Tokenizer) -> TokenIds:
    """As the server encodes it."""
    if isinstance(prompt, TextPrompt):
        return tokenizer.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)
    return tokenizer.encode(rendered(prompt, tokenizer), add_special_tokens=False)


def rendered(prompt: ChatPrompt, tokenizer: Tokenizer) -> str:
    return tokenizer.apply_chat_template(
        prompt.messages,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
        template_kwargs=prompt.template_kwargs,
    )


def divergence_of(ours: TokenIds, theirs: TokenIds, *, window: int = 20) -> Divergence:
    """Where `ours` left `theirs`, told as the scheduler tells it."""
    shared = min(len(ours), len(theirs))
    differs = np.flatnonzero(ours[:shared] != theirs[:shared])
    at = int(differs[0]) if len(differs) else shared
    start = max(0, at - window)
    return Divergence(
        token_index=at,
        has_other=at < len(theirs),
        is_cached=True,
        window_start=start,
        other_token_ids=tuple(theirs[start : at + 28].tolist()),
        other_request_id=RequestId("before"),
    )


def report_of(token_ids: TokenIds, divergence: Divergence | None, *misses: MissedPages) -> PrefixReport:
    """What was shared came from the device."""
    num_cached = 0 if divergence is None else divergence.token_index // PAGE_SIZE * PAGE_SIZE
    return PrefixReport(
        page_size=PAGE_SIZE,
        num_prompt_tokens=len(token_ids),
        num_tokens_by_source={
            "device": num_cached,
            "host": 0,
            "storage": 0,
            "computed": len(token_ids) - num_cached,
            "unreached": 0,
        },
        num_known_tokens=num_cached,
        misses=misses,
        divergence=divergence,
        saved_seconds=0.5,
        queue_seconds=0.25,
    )


def record_of(
    prompt: ChatPrompt | TextPrompt | None, token_ids: TokenIds, report: PrefixReport | None, **fields: Any
) -> RequestRecord:
    values: dict[str, Any] = {
        "request_id": RequestId("mine"),
        "cache_salt": "",
        "max_tokens": 5,
        "arrived_at": 1000.0,
        "began_at": 10.0,
        **fields,
    }
    return RequestRecord(prompt=prompt, token_ids=token_ids, report=report, **values)


def parted(ours: ChatPrompt | TextPrompt, theirs: ChatPrompt | TextPrompt, tokenizer: Tokenizer) -> ExplainedDivergence:
    """The explanation of where `ours` left `theirs`."""
    token_ids = encoded(ours, tokenizer)
    divergence = divergence_of(token_ids, encoded(theirs, tokenizer))
    explained = explain(
        record_of(ours, token_ids, report_of(token_ids, divergence)), tokenizer, model="m", redact=False
    )
    assert explained.divergence is not None
    assert msgspec.json.encode(explained)
    return explained.divergence


def place(divergence: ExplainedDivergence) -> tuple[int | None, str | None, int | None]:
    return divergence.message_index, divergence.message_part, divergence.message_character
