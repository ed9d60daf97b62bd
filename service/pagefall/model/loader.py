"""Loading a model's weights: once, straight into their dtype and onto their device."""

from __future__ import annotations

import logging
import time

from transformers import PreTrainedModel

from pagefall.model.memory import check_weights_fit, free_memory
from pagefall.model.spec import ModelSpec
from pagefall.model.weights import read_weights

logger = logging.getLogger(__name__)


def load_weights(spec: ModelSpec) -> PreTrainedModel:
    """The model in eval mode on `spec.device` in `spec.dtype`, without gradients.

    Raises `ModelError` where memory does not suffice (before anything is read) and where the files turn out unusable.
    """
    check_weights_fit(spec, free_memory(spec.device))
    started = time.monotonic()
    model = read_weights(
        spec.location.path,
        dtype=spec.dtype,
        trust_remote_code=spec.trust_remote_code,
        **spec.location.keywords(),
    )
    model.to(spec.device)
    model.eval().requires_grad_(requires_grad=False)
    logger.info("loaded %s in %.1f s", spec.served_name, time.monotonic() - started)
    return model
