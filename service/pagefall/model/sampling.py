"""Choosing the next tokens of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pagefall.messages import RequestId, SequenceStep, TokenLogprob


class Sampler:
    def __init__(self, vocab_size: int, device: torch.device) -> None:
        raise NotImplementedError

    def sample(self, logits: torch.Tensor, sequences: Sequence[SequenceStep]) -> tuple[TokenLogprob, ...]:
        """`logits` `[num_sequences, vocab_size]`, any float dtype; every `sequences[i].sampling` is set."""
        raise NotImplementedError

    def forget(self, request_ids: Iterable[RequestId]) -> None:
        """Drop what is kept about these requests. Unknown ids are ignored."""
        raise NotImplementedError
