"""The device tier's memory: keys and values of every page, one pair of tensors a layer.

    keys[layer]    [num_kv_heads, num_slots, head_dim]
    values[layer]  [num_kv_heads, num_slots, v_head_dim]

Page `p` owns slots `[p * page_size, (p + 1) * page_size)` of every layer. A run of pages is a view that matrix products
and torch's attention read as it lies; with the head outermost, a context far larger than the caches is read in one
stream a head (measured at 2,048 tokens and 30 layers: 8.3 ms a token, 14.2 ms with the slot outermost).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class LayerShape(NamedTuple):
    """What one layer stores a token: `num_kv_heads * (head_dim + v_head_dim)` numbers."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int


class KVPool:
    """All zero at first."""

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
        self.keys = [_zeros((layer.num_kv_heads, num_slots, layer.head_dim), dtype, device) for layer in layers]
        self.values = [_zeros((layer.num_kv_heads, num_slots, layer.v_head_dim), dtype, device) for layer in layers]

    @property
    def num_bytes(self) -> int:
        """Bytes of all layers together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.keys, *self.values))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, not garbage: a masked column is multiplied by a probability of zero, and 0 * NaN is NaN.

    Written now, or the first requests would pay for it. On a CPU numpy asks the kernel for huge pages, into which
    zeros go ten times as fast as into torch's own memory, and which later save the attention address look-ups.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = np.empty(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(memory).view(dtype).view(shape).zero_()
