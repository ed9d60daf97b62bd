"""Loading a model's weights."""

from __future__ import annotations

from transformers import PreTrainedModel

from pagefall.model.spec import ModelSpec


def load_weights(spec: ModelSpec) -> PreTrainedModel:
    """The model in eval mode on `spec.device` in `spec.dtype`, without gradients. Raises `ModelError`."""
    raise NotImplementedError
