"""The layers of the fused forward while decoding: as few torch calls as there can be, in what torch can script.

With one row a matrix product is a stream of weights. torch's own kernel for it, over weights as they lie, streams
faster than oneDNN's over packed ones (measured: 27 against 22 GB/s), but sums in another order and is slow for more
rows than one; so it serves a token alone in its step, where a second copy of the weights is kept (see `fused`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import linear, silu

from pagefall.model.decode_attention import DecodePlan, attend_tokens


class DecodeLayers(NamedTuple):
    """One of each a layer: norms as `rms_norm` takes them, weights packed for oneDNN, biases.

    `query_norm`, `key_norm` and `qkv_bias` are empty where a layer has none.
    """

    input_norm: list[torch.Tensor]
    qkv: list[torch.Tensor]
    qkv_bias: list[torch.Tensor]
    query_norm: list[torch.Tensor]
    key_norm: list[torch.Tensor]
    output: list[torch.Tensor]
    mlp_norm: list[torch.Tensor]
    gate: list[torch.Tensor]
    up: list[torch.Tensor]
    down: list[torch.Tensor]


class DecodeSettings(NamedTuple):
    """The model's shape. `floor` and `head_floor` are `sqrt(size * epsilon)` of the norms, 0-dimensional float32."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    floor: torch.Tensor
    head_floor: torch.Tensor


def decode_layers(
    hidden: torch.Tensor,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    slots: torch.Tensor,
    plan: DecodePlan,
    layers: DecodeLayers,
    is_packed: bool,
    settings: DecodeSettings,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
) -> torch.Tensor:
    """Hidden `[num_rows, hidden_size]` before the first layer; returns it after the last one, before the final norm.

    cosine, sine `[num_rows, 1, head_dim]`, the first half of `sine` negated. keys, values: the pool's layers; the first
    rows' own are written to `slots` (`[num_tokens]` int64). `is_packed`: the weights are oneDNN's; else they lie as in
    `torch.nn.Linear`, and there is one row. In the part of Python that `torch.jit.script` takes.
    """
    num_rows, num_tokens = hidden.size(0), slots.numel()
    num_heads, num_kv_heads, head_dim = settings.num_heads, settings.num_kv_heads, settings.head_dim
    num_rotated = num_heads + num_kv_heads
    attended = torch.zeros([num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim], dtype=hidden.dtype)
    for index in range(len(layers.qkv)):
        normed = rms_norm(hidden, layers.input_norm[index], settings.floor)
        bias = layers.qkv_bias[index] if layers.qkv_bias[index].numel() > 0 else None
        if is_packed:
            qkv = torch.ops.mkldnn._linear_pointwise(normed, layers.qkv[index], bias, "none", [], "")  # noqa: SLF001
        else:
            qkv = linear(normed, layers.qkv[index], bias)
        qkv = qkv.view([num_rows, num_rotated + num_kv_heads, head_dim])
        straight = qkv.narrow(1, 0, num_rotated)
        if layers.query_norm[index].numel() > 0:
            query = rms_norm(straight.narrow(1, 0, num_heads), layers.query_norm[index], settings.head_floor)
            key = rms_norm(straight.narrow(1, num_heads, num_kv_heads), layers.key_norm[index], settings.head_floor)
            straight = torch.cat([query, key], 1)
        # rotate_half(x) * sin is roll(x) * (-sin, sin): the halves change places.
        rotated = torch.roll(straight, [head_dim // 2], [-1]).mul_(sine).addcmul_(straight, cosine)
        key = rotated.narrow(1, num_heads, num_kv_heads).narrow(0, 0, num_tokens)
        value = qkv.narrow(1, num_rotated, num_kv_heads).narrow(0, 0, num_tokens)
        keys[index].index_copy_(1, slots, key.transpose(0, 1))
        values[index].index_copy_(1, slots, value.transpose(0, 1))
        query = rotated.narrow(1, 0, num_heads).reshape([num_rows, num_kv_heads, -1, head_dim])
        attend_tokens(query, keys[index], values[index], plan, settings.scale, attended)
        flat = attended.view([num_rows, num_heads * head_dim])
        if is_packed:
            hidden = torch.ops.mkldnn._linear_pointwise(flat, hidden, layers.output[index], None, "add")  # noqa: SLF001
            normed = rms_norm(hidden, layers.mlp_norm[index], settings.floor)
            gated = torch.ops.mkldnn._linear_pointwise(normed, layers.gate[index], None, "swish", [], "")  # noqa: SLF001
            gated = torch.ops.mkldnn._linear_pointwise(normed, gated, layers.up[index], None, "mul")  # noqa: SLF001
            hidden = torch.ops.mkldnn._linear_pointwise(gated, hidden, layers.down[index], None, "add")  # noqa: SLF001
        else:
            hidden = linear(flat, layers.output[index]).add_(hidden)
            normed = rms_norm(hidden, layers.mlp_norm[index], settings.floor)
            gated = silu(linear(normed, layers.gate[index])).mul_(linear(normed, layers.up[index]))
            hidden = linear(gated, layers.down[index]).add_(hidden)
    return hidden


def rms_norm(rows: torch.Tensor, scaled_weight: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """RMSNorm over the last dimension, rounded to the rows' dtype once, at the end.

    `scaled_weight` is the weight times `sqrt(size)`, float32; `floor` is `sqrt(size * epsilon)`:
    `rows / sqrt(sum of squares + size * epsilon) * scaled_weight` is four torch calls, `transformers`' norm is seven.
    """
    norm = torch.ops.aten.linalg_vector_norm(rows, 2.0, [-1], True, dtype=torch.float32)
    return torch.div(rows, torch.hypot(norm, floor)).mul_(scaled_weight).to(rows.dtype)
