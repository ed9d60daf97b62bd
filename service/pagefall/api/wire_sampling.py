"""The request fields that chat and text completions share, and what they mean to the engine."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from pagefall.api.choices import MAX_CHOICES
from pagefall.api.no_ops import NoOps
from pagefall.api.structured_output import ConstraintFields
from pagefall.errors import RequestError
from pagefall.messages import SamplingParams
from pagefall.text.requests import ModelCard

_Number = TypeVar("_Number", int, float)

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
NumTokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
NumTopLogprobs = Annotated[int, Meta(ge=0, le=20)]
NumChoices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`include_obfuscation` pads OpenAI's events against eavesdroppers; here it changes nothing."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(ConstraintFields, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's sampling fields and SGLang's additions. Null is the default everywhere."""

    model: str | None = None
    n: NumChoices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: NumTokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None

    min_tokens: Any = None
    skip_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    no_stop_trim: Any = None
    lora_path: Any = None


SAMPLING_NO_OPS: Final[NoOps] = {
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "no_stop_trim": (False,),
    "lora_path": (),
}

_SMALLEST_TOP_P: Final = 1e-6
"""A nucleus of no probability still holds the most likely token, which is what `top_p: 0` asks for."""


def sampling_params(fields: SamplingFields, card: ModelCard, *, num_top_logprobs: int | None) -> SamplingParams:
    """The validated sampling of a request. Raises `RequestError` for a token id that the model does not have."""
    bias = fields.logit_bias or {}
    check_token_ids(bias, card, param="logit_bias")
    top_p = _or(fields.top_p, 1.0)
    return SamplingParams(
        temperature=_or(fields.temperature, 1.0),
        top_p=max(top_p, _SMALLEST_TOP_P),
        top_k=max(_or(fields.top_k, 0), 0),
        min_p=_or(fields.min_p, 0.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        logit_bias=tuple(sorted(bias.items())),
        seed=None if fields.seed is None else fields.seed % 2**63,
        num_top_logprobs=num_top_logprobs,
    )


def stop_strings(fields: SamplingFields) -> tuple[str, ...]:
    match fields.stop:
        case None:
            return ()
        case str(string):
            return (string,)
        case strings:
            return tuple(strings)


def stop_token_ids(fields: SamplingFields, card: ModelCard) -> frozenset[int]:
    token_ids = fields.stop_token_ids or []
    check_token_ids(token_ids, card, param="stop_token_ids")
    return frozenset(token_ids)


def include_usage(fields: SamplingFields) -> bool:
    """Whether a stream ends with a usage chunk. Raises `RequestError` if `stream_options` come without `stream`."""
    if fields.stream_options is None:
        return False
    if not fields.stream:
        raise RequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is true.", param="stream_options"
        )
    return bool(fields.stream_options.include_usage)


def check_model(name: str | None, card: ModelCard) -> None:
    """Raises a 404 `RequestError` unless `name` is the served model or absent."""
    if name is not None and name != card.id:
        raise RequestError(
            f"The model '{name[:200]}' does not exist: this server has '{card.id}'.",
            status=404,
            type="not_found_error",
            param="model",
            code="model_not_found",
        )


def check_token_ids(token_ids: list[int] | dict[int, float], card: ModelCard, *, param: str) -> None:
    """Raises `RequestError` naming `param` if an id is not below the vocabulary's size."""
    if token_ids and (largest := max(token_ids)) >= card.vocab_size:
        raise RequestError(
            f"Invalid value for '{param}': token id {largest} is not below the vocabulary's size, {card.vocab_size}.",
            param=param,
            code="invalid_value",
        )


def _or(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
