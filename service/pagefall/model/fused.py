"""A fused forward for the common decoder on CPUs: Llama, Mistral, Qwen2, Qwen3.

The layer is the same in all four: RMSNorm, rotary attention with grouped heads, RMSNorm, gated MLP. Their unmodified
`transformers` forward spends more time between the matrix products than in them when one token is decoded. Here

- weights are packed once into oneDNN's blocked layout (plain `linear` packs them again on every call),
- q, k and v are one product; activation, gate product and residual sums run inside the products (oneDNN post-ops),
- and everything else is as few torch calls as the arithmetic allows.

Every product has `MIN_ROWS` rows or more, where oneDNN's result for a row does not depend on the other rows: what is
cached is bit for bit what would be computed again. A build is proven against the model it came from before it serves
(`forward.choose_forward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from pagefall.model.attention import AttentionOptions, PagedAttention
from pagefall.model.step_layout import StepLayout

FUSED_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""`config.model_type`s whose layer this file computes."""

ACTIVATIONS = {"silu": "swish", "swish": "swish", "relu": "relu"}
"""`config.hidden_act` in oneDNN's words."""

FUSED_DTYPES = frozenset({torch.bfloat16, torch.float32})

_PACKED_FOR_ROWS = 16
"""Rows oneDNN is told to expect when it chooses the blocked layout. Any number may come; 16 was as quick as the best
for 1 to 128 rows, and its results do not depend on how many come."""

_linear = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - the operator torch.compile itself emits for packed weights
_linear_binary = _linear.binary


class _Packed(NamedTuple):
    """A weight `[out_features, in_features]` in oneDNN's blocked layout, and its bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """`activation(rows @ weight.T + bias)`."""
        return cast("torch.Tensor", _linear(rows, self.weight, self.bias, activation, [], ""))

    def plus(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """`rows @ weight.T + bias + other`."""
        return cast("torch.Tensor", _linear_binary(rows, other, self.weight, self.bias, "add"))

    def times(self, rows: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """`(rows @ weight.T + bias) * other`."""
        return cast("torch.Tensor", _linear_binary(rows, other, self.weight, self.bias, "mul"))


class _Layer(NamedTuple):
    input_norm: torch.Tensor
    qkv: _Packed
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    attention: AttentionOptions
    output: _Packed
    mlp_norm: torch.Tensor
    gate: _Packed
    up: _Packed
    down: _Packed


class FusedForward:
    """Built from a loaded model; holds its own packed copy of the weights, so the model can be dropped afterwards."""

    def __init__(self, model: PreTrainedModel, sliding_windows: Sequence[int | None]) -> None:
        """`sliding_windows`: one a layer, None where a layer sees its whole context."""
        config: Any = model.config
        decoder: Any = model.model
        self._embedding: torch.Tensor = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._final_norm: torch.Tensor = decoder.norm.weight
        self._head = _pack(cast("torch.nn.Linear", model.lm_head))
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_dim: int = decoder.layers[0].self_attn.head_dim
        self._activation = ACTIVATIONS[config.hidden_act]
        self._epsilon = torch.tensor(config.rms_norm_eps, dtype=torch.float32)
        self._layers = [
            _pack_layer(layer, window) for layer, window in zip(decoder.layers, sliding_windows, strict=True)
        ]

    @staticmethod
    def supports(model: PreTrainedModel) -> bool:
        """Whether this file knows the model's layer. False is no error: the general forward serves it."""
        config: Any = model.config
        return (
            config.model_type in FUSED_MODEL_TYPES
            and config.hidden_act in ACTIVATIONS
            and model.dtype in FUSED_DTYPES
            and model.device.type == "cpu"
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        )

    def __call__(self, layout: StepLayout, attention: PagedAttention) -> torch.Tensor:
        """Logits of `layout.logit_rows`, `[len(logit_rows), vocab_size]`."""
        hidden = torch.nn.functional.embedding(layout.token_ids, self._embedding)
        num_rows = hidden.shape[0]
        num_heads, num_kv_heads, head_dim = self._num_heads, self._num_kv_heads, self._head_dim
        num_rotated, half = num_heads + num_kv_heads, head_dim // 2
        cosine, sine = self._rotary(hidden, layout.position_ids[None])
        cosine, sine = cosine[0, :, None], sine[0, :, None].clone()
        sine[..., :half].neg_()
        for index, layer in enumerate(self._layers):
            normed = self._norm(hidden, layer.input_norm)
            qkv = layer.qkv(normed).view(num_rows, num_rotated + num_kv_heads, head_dim)
            straight = qkv[:, :num_rotated]
            if layer.query_norm is not None and layer.key_norm is not None:
                straight = torch.cat(
                    (
                        self._norm(straight[:, :num_heads], layer.query_norm),
                        self._norm(straight[:, num_heads:], layer.key_norm),
                    ),
                    dim=1,
                )
            # rotate_half(x) * sin == cat(x2, x1) * cat(-sin, sin)
            rotated = torch.cat((straight[..., half:], straight[..., :half]), dim=-1)
            rotated.mul_(sine).addcmul_(straight, cosine)
            attended = attention.attend(
                index, rotated[:, :num_heads], rotated[:, num_heads:], qkv[:, num_rotated:], layer.attention
            )
            hidden = layer.output.plus(attended, hidden)
            normed = self._norm(hidden, layer.mlp_norm)
            gated = layer.up.times(normed, layer.gate(normed, self._activation))
            hidden = layer.down.plus(gated, hidden)
        return self._head(self._norm(hidden[layout.logit_rows], self._final_norm))

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last dimension, squares summed in float32, scaled rows rounded before the weight applies.

        The same roundings as `transformers`' `LlamaRMSNorm`, in half its calls.
        """
        norm = torch.linalg.vector_norm(rows, 2, -1, keepdim=True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, norm, norm, value=1.0 / rows.shape[-1]).rsqrt_()
        return (rows * scale).to(rows.dtype).mul_(weight)


def _pack_layer(layer: Any, sliding_window: int | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None if projections[0].bias is None else torch.cat([projection.bias for projection in projections])
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        qkv=_pack_weight(torch.cat([projection.weight for projection in projections]), bias),
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        attention=AttentionOptions(scale=attention.scaling, sliding_window=sliding_window),
        output=_pack(attention.o_proj),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate=_pack(mlp.gate_proj),
        up=_pack(mlp.up_proj),
        down=_pack(mlp.down_proj),
    )


def _pack(linear: torch.nn.Linear) -> _Packed:
    return _pack_weight(linear.weight, linear.bias)


def _pack_weight(weight: torch.Tensor, bias: torch.Tensor | None) -> _Packed:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACKED_FOR_ROWS)  # noqa: SLF001
    return _Packed(packed, None if bias is None else bias.detach())
