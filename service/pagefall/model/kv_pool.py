"""The device tier's memory: keys and values of every page, one pair of tensors a layer.

Layout, chosen for the attention in `attention.py`: keys lie transposed, so that a score tile is one plain matrix
product over a view, with no copy of the context:

    keys[layer]    [num_kv_heads, head_dim, num_slots]
    values[layer]  [num_kv_heads, num_slots, v_head_dim]

Page `p` owns slots `[p * page_size, (p + 1) * page_size)` of every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class LayerShape(NamedTuple):
    """What one layer stores a token: `num_kv_heads * (head_dim + v_head_dim)` numbers."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int


class KVPool:
    """Uninitialised at first: a slot is read only after a step wrote it."""

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        num_slots = num_pages * page_size
        # Zeros, not garbage: a masked column is multiplied by a probability of zero, and 0 * NaN is NaN.
        self.keys = [
            torch.zeros(shape.num_kv_heads, shape.head_dim, num_slots, dtype=dtype, device=device) for shape in layers
        ]
        self.values = [
            torch.zeros(shape.num_kv_heads, num_slots, shape.v_head_dim, dtype=dtype, device=device) for shape in layers
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.keys, *self.values))
