"""Asks a model how it attends, by one forward on the meta device: no weights, no arithmetic, well under a second.

A configuration does not say how its model reads it: some heads are counted per layer, some windows apply to every other
layer, some layers do not attend at all. The model's own code does, so it is run, with an attention function that
notes its arguments, on one token.

The law of this file: what passes here is pageable. Every way of attending that paged attention does not know is a
`ModelError` that names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from pagefall.errors import ModelError
from pagefall.model.kv_pool import LayerShape

_PROBE_NAME = "pagefall_probe"

_KNOWN_ARGUMENTS = frozenset({"scaling", "dropout", "sliding_window", "softcap", "s_aux"})
"""What paged attention takes into account."""

_HARMLESS_ARGUMENTS = frozenset(
    {"position_ids", "use_cache", "output_router_logits", "output_attentions", "logits_to_keep", "is_causal"}
)
"""What some models hand on and no attention function reads; causality is checked on the module."""

_PAGED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
"""Of `config.layer_types`."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """How a model attends: entry `i` is attention layer `i` (`module.layer_idx`)."""

    architecture: str
    layers: tuple[LayerShape, ...]
    sliding_window: tuple[int | None, ...]
    num_heads: int
    weights_bytes: int
    """Parameters and buffers in the dtype that was asked for."""


class _Call(NamedTuple):
    layer: int | None
    num_heads: int
    shape: LayerShape
    sliding_window: int | None
    is_causal: bool
    has_mask: bool
    unknown: tuple[str, ...]


def probe_attention(config: PreTrainedConfig, *, name: str, dtype: torch.dtype, trust_remote_code: bool) -> Attention:
    """Build `config`'s model on the meta device and watch one token pass through it. `name` is for messages.

    Raises `ModelError` where a layer attends in a way that pages of keys and values cannot serve.
    """
    layer_types: list[str] = getattr(config.get_text_config(), "layer_types", None) or []
    if unpaged := sorted(set(layer_types) - _PAGED_LAYER_TYPES):
        raise ModelError(f"{name} has {', '.join(unpaged)} layers, which cannot be served from pages yet.")
    AttentionInterface.register(_PROBE_NAME, _note_call)
    AttentionMaskInterface.register(_PROBE_NAME, _no_mask)
    try:
        model = _build(config, dtype, trust_remote_code)
        calls = _run(model)
    except Exception as error:  # a model's own code may raise anything; the message is all there is to tell
        raise ModelError(f"{name} ({config.model_type}) cannot be served from pages: {_reason(error)}.") from error
    _check(calls, model, name=name, layer_types=layer_types)
    return Attention(
        architecture=type(model).__name__,
        layers=tuple(call.shape for call in calls),
        sliding_window=tuple(call.sliding_window for call in calls),
        num_heads=calls[0].num_heads,
        weights_bytes=_num_bytes(model.parameters()) + _num_bytes(model.buffers()),
    )


def _build(config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool) -> PreTrainedModel:
    # "batched_mm" is the form of a mixture of experts whose control flow does not depend on the data.
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config,
            dtype=dtype,
            attn_implementation=_PROBE_NAME,
            experts_implementation="batched_mm",
            trust_remote_code=trust_remote_code,
        )
    return model.eval()


def _run(model: PreTrainedModel) -> list[_Call]:
    """The attention calls of one forward in the order of their layers."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError("its forward takes no position_ids")
    calls: list[_Call] = []
    ones = torch.ones(1, 1, dtype=torch.long, device="meta")
    # The mask is given only because transformers would else look into `position_ids`, which hold no data here.
    with torch.no_grad(), torch.device("meta"):
        model(input_ids=ones, position_ids=ones, attention_mask=ones, use_cache=False, probe_calls=calls)
    return sorted(calls, key=lambda call: -1 if call.layer is None else call.layer)


def _note_call(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    probe_calls: list[_Call] | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """`transformers`' attention signature; query, key, value `[1, num_heads, 1, head_dim]`."""
    if probe_calls is None:
        raise ModelError("it hands no keywords to its attention")
    probe_calls.append(
        _Call(
            layer=getattr(module, "layer_idx", None),
            num_heads=query.shape[1],
            shape=LayerShape(num_kv_heads=key.shape[1], head_dim=key.shape[3], v_head_dim=value.shape[3]),
            sliding_window=arguments.get("sliding_window"),
            is_causal=bool(getattr(module, "is_causal", True)),
            has_mask=attention_mask is not None,
            unknown=tuple(sorted(arguments.keys() - _KNOWN_ARGUMENTS - _HARMLESS_ARGUMENTS)),
        )
    )
    return query.new_empty(1, 1, query.shape[1], value.shape[3]), None


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def _check(calls: list[_Call], model: PreTrainedModel, *, name: str, layer_types: list[str]) -> None:
    name = f"{name} ({model.config.model_type})"
    num_layers = model.config.get_text_config().num_hidden_layers
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{name} keeps a recurrent state, which cannot be served from pages yet.")
    if [call.layer for call in calls] != list(range(num_layers)):
        raise ModelError(
            f"{name} attends in {len(calls)} places in {num_layers} layers: only models with one attention per layer, "
            "reached through transformers' attention interface, can be served from pages."
        )
    if not all(call.is_causal for call in calls):
        raise ModelError(f"{name} is an encoder: it cannot generate text.")
    if any(call.has_mask for call in calls):
        raise ModelError(f"{name} masks its attention in a way of its own, which cannot be served from pages.")
    if unknown := sorted({argument for call in calls for argument in call.unknown}):
        raise ModelError(f"{name} attends with {', '.join(unknown)}, which paged attention does not know.")
    for call, layer_type in zip(calls, layer_types, strict=False):
        if (layer_type == "sliding_attention") != (call.sliding_window is not None):
            raise ModelError(f"{name} does not tell its attention about the window of layer {call.layer}.")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError) and error.args == (_PROBE_NAME,):
        return "its attention cannot be replaced"
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Tied tensors count once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in tensors}.values())
