"""What a layer adds to plain causal attention."""

from __future__ import annotations

from typing import NamedTuple

import torch


class AttentionOptions(NamedTuple):
    """`sinks`: `[num_heads]`, one extra logit a head that takes weight and gives nothing (gpt-oss)."""

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None

    def first_visible(self, position: int) -> int:
        """The oldest position that the token at `position` sees."""
        return 0 if self.sliding_window is None else max(0, position - self.sliding_window + 1)
