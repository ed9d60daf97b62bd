"""What the HTTP layer asks of the engine, and what it gets back.

These values live below both sides: `api` makes the requests, `actors` answers them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pagefall.errors import RequestError
from pagefall.messages import FinishReason, PrefixReport, RequestId, SamplingParams, Tier
from pagefall.text.constraints import Constraint
from pagefall.text.replies.dialects import ReplyFormat


class TextPrompt(msgspec.Struct, frozen=True):
    """Text to be encoded; `add_special_tokens` lets the tokenizer put its own (often a BOS) around it."""

    text: str
    add_special_tokens: bool = True


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids as the client sent them; each is below the model's `vocab_size`."""

    token_ids: tuple[int, ...]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made. `arguments` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. `parameters` is a JSON schema, its keys in canonical order; None: no
    arguments. `strict`: arguments always validate.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn. `role` is what the template understands: `system`, `user`, `assistant` or `tool`.

    `tool_call_id`: which call of an assistant's turn a `tool` message answers.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation for the model's chat template. `template_kwargs` become variables of the template."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class PinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A wish to keep the prefix of a chat prompt through its first `num_messages` messages for so long in the cache.

    With 0 it is what the template writes before the first message, the tools for example.
    """

    num_messages: int
    ttl_seconds: float


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to be continued. Every value is in its range; only the prompt's length is still unknown.

    `max_tokens` None: to the end of the context. `stop_token_ids` are the request's own, without the model's
    end-of-sequence ids. No text from a stop string on is ever returned. `constraint`: what the answer must look like.
    `kept_special_token_ids`: special tokens that are shown in the text all the same, for whoever parses it.
    """

    request_id: RequestId
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    cache_salt: str = ""
    pins: tuple[PinRequest, ...] = ()
    priority: int = 0
    constraint: Constraint | None = None
    kept_special_token_ids: frozenset[int] = frozenset()
    http_request_id: str | None = None
    """The `x-request-id` of the HTTP request that it came with; several prompts may have come with one."""
    echo: bool = False
    """Whether the prompt's text stands before the answer's, and where logprobs are wanted the prompt's before these."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one request used, in tokens. `cached_tokens` is the sum of `cached_tokens_by_tier`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cached_tokens_by_tier: dict[Tier, int] = {}


class CandidateToken(msgspec.Struct, frozen=True):
    """A token that could be at one position. `text` is `bytes` as text (see `Tokenizer.token_text`)."""

    token_id: int
    text: str
    bytes: bytes
    logprob: float


class TextLogprob(msgspec.Struct, frozen=True):
    """The chosen token, and the most likely ones in falling order. A `special` token leaves no text in the answer.

    `is_first`: the first token of an echoed prompt; nothing stands before it, and its `logprob` means nothing.
    """

    chosen: CandidateToken
    top: tuple[CandidateToken, ...] = ()
    special: bool = False
    is_first: bool = False


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one answer.

    `text` may lag behind `token_ids` (incomplete characters and possible stop strings are held back) and catches up
    at the latest in the delta that carries `finish_reason`, which is the last one and the only one with `usage`.
    `logprobs` has one entry a token where the request asked for them, else it is empty. Those of an echoed prompt come
    before them, if they are many in several deltas without tokens; the prompt's text is in the first of these.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TextLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prefix: PrefixReport | None = None
    """The prompt's account, on the first delta and on no other."""
    prompt_tail: str = ""
    """The last few characters of the prompt as the model saw it, special tokens included; on the first delta only."""
    num_pinned_tokens: int = 0
    """Of the longest prefix that the request's `pins` keep; on the first delta only."""
    stop_string: str | None = None
    """The stop string that ended the answer, on the last delta."""


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The served model: its name, limits in tokens, and the Unix time in seconds at which it was loaded."""

    id: str
    context_length: int
    vocab_size: int
    created: int
    root: str | None = None
    """Where it was loaded from, as the operator wrote it."""
    replies: ReplyFormat = ReplyFormat()
    """How it writes calls and thoughts."""


def resolve_max_tokens(*, max_tokens: int | None, num_prompt_tokens: int, context_length: int, param: str) -> int:
    """The number of tokens the answer may have, at least 1 unless `max_tokens` is 0.

    Raises `RequestError` naming `param` (`prompt` or `messages`) when the prompt is empty, when it leaves no room for
    an answer, or when prompt and `max_tokens` together pass the context.
    """
    if num_prompt_tokens == 0:
        raise RequestError(f"The {param} has no tokens: send at least one.", param=param, code="empty_prompt")
    room = context_length - num_prompt_tokens
    if room < (1 if max_tokens is None else max_tokens):
        asked = "" if max_tokens is None else f" and {max_tokens} for the completion"
        raise RequestError(
            f"This model's maximum context length is {context_length} tokens, but you requested {num_prompt_tokens} "
            f"tokens in the {param}{asked}. Reduce the length of the {param}"
            f"{'' if max_tokens is None else ' or the completion'}.",
            param=param,
            code="context_length_exceeded",
        )
    return room if max_tokens is None else max_tokens
