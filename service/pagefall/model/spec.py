"""Everything known about a model before its weights are loaded, and every reason not to serve it.

The law of this file: nothing here reads weights. What the configuration alone cannot say reliably (which layers
attend, with how many key/value heads, within which window) is asked of the model itself, built on the meta device.
"""

from __future__ import annotations

import torch
import msgspec

from pagefall.config import ModelConfig
from pagefall.model.kv_pool import LayerShape
from pagefall.model.location import ModelLocation


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served here.

    `layers[i]` and `sliding_window[i]` describe attention layer `i`; a window of None sees the whole context.
    `context_length` is what one request may use: prompt and answer. `weights_bytes` is what the weights will take in
    `dtype` once loaded.
    """

    location: ModelLocation
    served_name: str
    architecture: str
    model_type: str
    layers: tuple[LayerShape, ...]
    sliding_window: tuple[int | None, ...]
    num_attention_heads: int
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    weights_bytes: int
    dtype: torch.dtype
    device: torch.device
    trust_remote_code: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in all layers, at `itemsize` bytes a number."""
        return itemsize * sum(layer.num_kv_heads * (layer.head_dim + layer.v_head_dim) for layer in self.layers)


def inspect(config: ModelConfig) -> ModelSpec:
    """Resolve `config` into a model that can be served.

    Raises `ModelError` (one line) for a model that cannot be, `ConfigError` for a `--context-length` it does not have.
    """
    raise NotImplementedError
