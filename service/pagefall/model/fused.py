"""A fused forward for the common decoder on CPUs: Llama, Mistral, Qwen2, Qwen3.

The layer is the same in all four: RMSNorm, rotary attention with grouped heads, RMSNorm, gated MLP. Their unmodified
`transformers` forward spends more time between the matrix products than in them when one token is decoded. Here

- weights are packed once into oneDNN's blocked layout (plain `linear` packs them again on every call),
- q, k and v are one product; activation, gate product and residual sums run inside the products (oneDNN post-ops),
- and everything else is as few torch calls as the arithmetic allows: with one row, a call costs more than its work.

Every product has `MIN_ROWS` rows or more, where oneDNN's result for a row does not depend on the other rows: what is
cached is bit for bit what would be computed again. A build is proven against the model it came from before it serves
(`forward.choose_forward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from pagefall.model.attention import PagedAttention
from pagefall.model.attention_options import AttentionOptions
from pagefall.model.constrained import StepMasks
from pagefall.model.fused_layers import DecodeLayers, DecodeSettings, rms_norm
from pagefall.model.scripting import Scripted
from pagefall.model.step_layout import StepLayout
from pagefall.model.top_logits import top

FUSED_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""`config.model_type`s whose layer this file computes."""

ACTIVATIONS = frozenset({"silu", "swish"})
"""`config.hidden_act`s: two names of the one that gated MLPs use."""

_NUM_SHARPENED = 8
"""Tokens whose logits are computed in float32 too. A vocabulary is larger."""

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


class _RMSNorm(NamedTuple):
    """`fused_layers.rms_norm` with its weight. `floor` belongs to the size of the rows, not to the layer."""

    scaled_weight: torch.Tensor
    floor: torch.Tensor

    @classmethod
    def of(cls, module: Any) -> _RMSNorm:
        """From a `transformers` RMSNorm module."""
        size = module.weight.shape[0]
        return cls(module.weight.detach().float() * size**0.5, torch.tensor((size * module.variance_epsilon) ** 0.5))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, self.scaled_weight, self.floor)


class _Layer(NamedTuple):
    input_norm: _RMSNorm
    qkv: _Packed
    query_norm: _RMSNorm | None
    key_norm: _RMSNorm | None
    attention: AttentionOptions
    output: _Packed
    mlp_norm: _RMSNorm
    gate: _Packed
    up: _Packed
    down: _Packed


class FusedForward:
    """Built from a loaded model. The model can be dropped afterwards."""

    def __init__(
        self,
        model: PreTrainedModel,
        sliding_windows: Sequence[int | None],
        scripted: Scripted,
        *,
        keeps_plain_weights: bool,
    ) -> None:
        """`sliding_windows`: one a layer, None where a layer sees its whole context.

        `keeps_plain_weights` keeps the unpacked weights beside the packed ones: twice the memory, and a token alone
        takes three quarters of the time (`fused_layers`).
        """
        config: Any = model.config
        decoder: Any = model.model
        head = cast("torch.nn.Linear", model.lm_head)
        self._embedding: torch.Tensor = decoder.embed_tokens.weight.detach()
        self._rotary = decoder.rotary_emb
        self._final_norm = _RMSNorm.of(decoder.norm)
        self._head = _pack(head)
        self._head_weight = head.weight.detach()
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_dim: int = decoder.layers[0].self_attn.head_dim
        self._layers = [
            _pack_layer(layer, window) for layer, window in zip(decoder.layers, sliding_windows, strict=True)
        ]
        self._scripted = scripted
        self._settings = self._decode_settings()
        self._packed_layers: DecodeLayers | None = None
        self._plain_layers: DecodeLayers | None = None
        if _can_script(decoder.layers, sliding_windows):
            self._packed_layers = _packed_layers(self._layers)
            if keeps_plain_weights and cast("torch.Tensor | None", head.bias) is None:
                self._plain_layers = _plain_layers(self._packed_layers, decoder.layers)

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

    def __call__(self, layout: StepLayout, attention: PagedAttention, masks: StepMasks | None = None) -> torch.Tensor:
        """Logits of `layout.logit_rows`, `[len(logit_rows), vocab_size]`; of a token alone, `[1, vocab_size]`."""
        if self._packed_layers is not None and all(sequence.is_decode for sequence in layout.sequences):
            if self._plain_layers is not None and layout.num_rows == 1:
                with _without_onednn():  # else one row goes through it, packing the weights anew
                    hidden = self._decode(self._plain_layers, layout, attention, num_rows=1)
                    logits = torch.nn.functional.linear(hidden, self._head_weight)
                    return self._sharpened(logits, hidden, masks)
            hidden = self._decode(self._packed_layers, layout, attention, num_rows=len(layout.token_ids))
            hidden = hidden[layout.logit_rows]
            return self._sharpened(self._head(hidden), hidden, masks)
        hidden, cosine, sine = self._embed(layout.token_ids, layout.position_ids)
        num_rows = hidden.shape[0]
        num_heads, num_kv_heads, head_dim = self._num_heads, self._num_kv_heads, self._head_dim
        num_rotated = num_heads + num_kv_heads
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(layer.input_norm(hidden)).view(num_rows, num_rotated + num_kv_heads, head_dim)
            straight = qkv[:, :num_rotated]
            if layer.query_norm is not None and layer.key_norm is not None:
                straight = torch.cat(
                    (layer.query_norm(straight[:, :num_heads]), layer.key_norm(straight[:, num_heads:])), dim=1
                )
            # rotate_half(x) * sin is roll(x) * (-sin, sin): the halves change places.
            rotated = torch.roll(straight, head_dim // 2, -1).mul_(sine).addcmul_(straight, cosine)
            query, key = rotated[:, :num_heads], rotated[:, num_heads:]
            value = qkv[:, num_rotated:]
            if layer is not self._layers[-1]:
                attended = attention.attend(index, query, key, value, layer.attention)
            else:  # nothing looks at the other rows any more
                wanted: Literal["every row", "last rows"] = "every row" if layout.num_scored else "last rows"
                attended = attention.attend(index, query, key, value, layer.attention, wanted=wanted)
                attended, hidden = attended[layout.logit_rows], hidden[layout.logit_rows]
            hidden = layer.output.plus(attended, hidden)
            normed = layer.mlp_norm(hidden)
            gated = layer.up.times(normed, layer.gate(normed, "swish"))
            hidden = layer.down.plus(gated, hidden)
        hidden = self._final_norm(hidden)
        return self._sharpened(self._head(hidden), hidden, masks)

    def _embed(
        self, token_ids: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden rows, cosines, and sines with their first half negated, `[num_rows, 1, head_dim]` each of the two."""
        hidden = torch.nn.functional.embedding(token_ids, self._embedding)
        cosine, sine = self._rotary(hidden, position_ids[None])
        sine = sine[0, :, None].clone()
        sine[..., : self._head_dim // 2].neg_()
        return hidden, cosine[0, :, None], sine

    def _decode(
        self, layers: DecodeLayers, layout: StepLayout, attention: PagedAttention, *, num_rows: int
    ) -> torch.Tensor:
        """Normed hidden rows after the last layer."""
        hidden, cosine, sine = self._embed(layout.token_ids[:num_rows], layout.position_ids[:num_rows])
        hidden = self._scripted.decode_layers(
            hidden,
            cosine,
            sine,
            layout.slots,
            attention.decode_plan(self._layers[0].attention),
            layers,
            layers is self._packed_layers,
            self._settings,
            attention.pool.keys,
            attention.pool.values,
        )
        return self._final_norm(hidden)

    def _sharpened(self, logits: torch.Tensor, hidden: torch.Tensor, masks: StepMasks | None = None) -> torch.Tensor:
        """The logits in float32, those of the likeliest tokens computed anew in it from the normed `hidden` rows.

        At 25, bfloat16 numbers are an eighth apart, and the likeliest tokens often closer than that: rounded logits are
        ties, which the lowest token id wins. With `masks`, that goes for the likeliest of those allowed, too.
        """
        logits = logits.float()
        if hidden.dtype == torch.float32:
            return logits
        likeliest = top(logits, _NUM_SHARPENED)[1]
        if masks is not None:
            of_allowed = likeliest.clone()
            of_allowed[masks.rows] = top(masks.of(logits), _NUM_SHARPENED)[1]
            likeliest = torch.cat((likeliest, of_allowed), dim=-1)
        exact = (self._head_weight[likeliest].float() * hidden.float()[:, None]).sum(dim=-1)
        if self._head.bias is not None:
            exact += self._head.bias[likeliest]
        return logits.scatter_(1, likeliest, exact)

    def _decode_settings(self) -> DecodeSettings:
        first = self._layers[0]
        return DecodeSettings(
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            scale=first.attention.scale,
            floor=first.input_norm.floor,
            head_floor=first.input_norm.floor if first.query_norm is None else first.query_norm.floor,
        )


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Torch's own matrix products, for this process. Only the model runner's thread computes anything."""
    enabled = torch._C._get_mkldnn_enabled()  # noqa: SLF001 - the switch in torch.backends warns each time
    torch._C._set_mkldnn_enabled(False)  # noqa: SLF001
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)  # noqa: SLF001


def _can_script(layers: Any, sliding_windows: Sequence[int | None]) -> bool:
    """Whether `fused_layers` knows these: one window for all, and biases only where q, k and v are made."""
    others = [
        linear.bias
        for layer in layers
        for linear in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    ]
    return len(set(sliding_windows)) == 1 and all(bias is None for bias in others)


def _packed_layers(layers: Sequence[_Layer]) -> DecodeLayers:
    nothing = torch.empty(0)
    return DecodeLayers(
        input_norm=[layer.input_norm.scaled_weight for layer in layers],
        qkv=[layer.qkv.weight for layer in layers],
        qkv_bias=[nothing if layer.qkv.bias is None else layer.qkv.bias for layer in layers],
        query_norm=[nothing if layer.query_norm is None else layer.query_norm.scaled_weight for layer in layers],
        key_norm=[nothing if layer.key_norm is None else layer.key_norm.scaled_weight for layer in layers],
        output=[layer.output.weight for layer in layers],
        mlp_norm=[layer.mlp_norm.scaled_weight for layer in layers],
        gate=[layer.gate.weight for layer in layers],
        up=[layer.up.weight for layer in layers],
        down=[layer.down.weight for layer in layers],
    )


def _plain_layers(packed: DecodeLayers, layers: Any) -> DecodeLayers:
    """The same with weights as the model has them."""
    return packed._replace(
        qkv=[_qkv(layer.self_attn)[0] for layer in layers],
        output=[layer.self_attn.o_proj.weight.detach() for layer in layers],
        gate=[layer.mlp.gate_proj.weight.detach() for layer in layers],
        up=[layer.mlp.up_proj.weight.detach() for layer in layers],
        down=[layer.mlp.down_proj.weight.detach() for layer in layers],
    )


def _qkv(attention: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The three projections as one weight and bias."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([projection.weight.detach() for projection in projections])
    if projections[0].bias is None:
        return weight, None
    return weight, torch.cat([projection.bias.detach() for projection in projections])


def _pack_layer(layer: Any, sliding_window: int | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        input_norm=_RMSNorm.of(layer.input_layernorm),
        qkv=_pack_weight(*_qkv(attention)),
        query_norm=_RMSNorm.of(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=_RMSNorm.of(attention.k_norm) if hasattr(attention, "k_norm") else None,
        attention=AttentionOptions(scale=attention.scaling, sliding_window=sliding_window),
        output=_pack(attention.o_proj),
        mlp_norm=_RMSNorm.of(layer.post_attention_layernorm),
        gate=_pack(mlp.gate_proj),
        up=_pack(mlp.up_proj),
        down=_pack(mlp.down_proj),
    )


def _pack(linear: torch.nn.Linear) -> _Packed:
    return _pack_weight(linear.weight, linear.bias)


def _pack_weight(weight: torch.Tensor, bias: torch.Tensor | None) -> _Packed:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACKED_FOR_ROWS)  # noqa: SLF001
    return _Packed(packed, None if bias is None else bias.detach())
