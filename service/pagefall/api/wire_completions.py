"""`/v1/completions` on the wire, and what it means to the engine."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pagefall.api.choices import choices_of
from pagefall.api.no_ops import NoOps, refuse_unsupported
from pagefall.api.structured_output import answer_constraint
from pagefall.api.wire_sampling import (
    SAMPLING_NO_OPS,
    NumChoices,
    NumTopLogprobs,
    SamplingFields,
    TokenId,
    check_token_ids,
    sampling_params,
    stop_strings,
    stop_token_ids,
)
from pagefall.api.wire_usage import WireUsage
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.requests import GenerateRequest, ModelCard, Prompt, TextPrompt, TokenPrompt

_DEFAULT_MAX_TOKENS: Final = 16
_MAX_PROMPTS: Final = 1024


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=False):
    """`prompt`: a string, strings, token ids, or lists of token ids. `max_tokens` 0 only computes and caches it, and
    with `echo` says what its own tokens are worth.
    """

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: NumTopLogprobs | None = None
    best_of: NumChoices | None = None
    echo: bool | None = None

    suffix: Any = None


_NO_OPS: Final[NoOps] = {**SAMPLING_NO_OPS, "suffix": ("",)}


class LegacyLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry a token; null for the first token of an echoed prompt, which nothing stands before.

    `text_offset` counts characters from the start of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: WireUsage | UnsetType | None = UNSET


def prompt_request_id(answer_id: str, index: int) -> RequestId:
    """The id of the request of one prompt of several."""
    return RequestId(f"{answer_id}-{index}")


def completion_requests(body: CompletionRequest, card: ModelCard, answer_id: str) -> tuple[GenerateRequest, ...]:
    """`n` requests a prompt, in order. Raises `RequestError` naming the first field that is wrong or not supported."""
    refuse_unsupported(body, _NO_OPS)
    n = num_choices(body)
    prompts = _prompts(body.prompt, card)
    sampling = sampling_params(body, card, num_top_logprobs=body.logprobs)
    token_ids = stop_token_ids(body, card)
    constraint = answer_constraint(body)
    requests = tuple(
        GenerateRequest(
            request_id=RequestId(answer_id) if len(prompts) == 1 else prompt_request_id(answer_id, index),
            prompt=prompt,
            sampling=sampling,
            max_tokens=_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            stop=stop_strings(body),
            stop_token_ids=token_ids,
            ignore_eos=bool(body.ignore_eos),
            cache_salt=body.cache_salt or "",
            priority=body.priority or 0,
            constraint=constraint,
            echo=bool(body.echo),
        )
        for index, prompt in enumerate(prompts)
    )
    return choices_of(requests, n)


def num_choices(body: CompletionRequest) -> int:
    """Raises `RequestError` for a `best_of` that would choose among more answers than are returned."""
    n = body.n or 1
    if body.best_of not in (None, n):
        raise RequestError(
            f"Unsupported value: this server returns every answer that it makes: 'best_of' must be 'n', which is {n}. "
            "Leave it out.",
            param="best_of",
            code="unsupported_value",
        )
    return n


def _prompts(wire: str | list[str | int | list[int]], card: ModelCard) -> list[Prompt]:
    if not wire:
        raise _empty("prompt")
    if isinstance(wire, str):
        return [TextPrompt(wire)]
    if isinstance(wire[0], int):
        return [_token_prompt(wire, card, "prompt")]
    if len(wire) > _MAX_PROMPTS:
        raise RequestError(
            f"'prompt' has {len(wire)} prompts: send at most {_MAX_PROMPTS} at once.",
            param="prompt",
            code="array_above_max_length",
        )
    prompts: list[Prompt] = []
    for index, item in enumerate(wire):
        path = f"prompt[{index}]"
        if type(item) is not type(wire[0]):
            raise _mixed(path)
        if not item:
            raise _empty(path)
        prompts.append(TextPrompt(item) if isinstance(item, str) else _token_prompt(item, card, path))
    return prompts


def _token_prompt(wire: object, card: ModelCard, path: str) -> TokenPrompt:
    assert isinstance(wire, list)
    if not all(isinstance(token_id, int) for token_id in wire):
        raise _mixed(path)
    check_token_ids(wire, card, param=path)
    return TokenPrompt(tuple(wire))


def _empty(path: str) -> RequestError:
    return RequestError(f"'{path}' is empty: send at least one character or token.", param=path, code="empty_prompt")


def _mixed(path: str) -> RequestError:
    return RequestError(
        f"Invalid value for '{path}': a prompt is a string, a list of strings, a list of token ids or a list of such "
        "lists, never a mixture.",
        param=path,
        code="invalid_type",
    )
