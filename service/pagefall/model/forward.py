"""Which forward serves a model: the fused one where it is known *and* proven equal, else `transformers`' own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.attention import PagedAttention
from pagefall.model.fused import FusedForward
from pagefall.model.hf_model import HFForward
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.model.step_layout import StepLayout

logger = logging.getLogger(__name__)

_PROBE_TOKENS = 40
_LEAST_SIMILARITY = {torch.float32: 1 - 1e-5, torch.bfloat16: 1 - 2e-3}
"""Cosine of the two forwards' logits, centred. Rounding alone stays well above; a wrong layer falls far below."""


class Forward(Protocol):
    """One forward over a step: logits of `layout.logit_rows`, `[len(logit_rows), vocab_size]`."""

    def __call__(self, layout: StepLayout, attention: PagedAttention) -> torch.Tensor: ...


def choose_forward(
    model: PreTrainedModel, layers: Sequence[LayerShape], sliding_windows: Sequence[int | None]
) -> Forward:
    """The quickest forward that is right for `model`. The model may be dropped when `FusedForward` is returned."""
    general = HFForward(model)
    if not FusedForward.supports(model):
        logger.info("forward: transformers (%s has no fused form on %s)", model.config.model_type, model.device)
        return general
    fused = FusedForward(model, sliding_windows)
    similarity = _similarity(general, fused, model, layers)
    if similarity < _LEAST_SIMILARITY[model.dtype]:
        logger.warning(
            "forward: transformers, because the fused form of %s differs from it (similarity %.6f)",
            model.config.model_type,
            similarity,
        )
        return general
    logger.info("forward: fused (similarity to transformers on a probe: %.6f)", similarity)
    return fused


def _similarity(general: Forward, fused: Forward, model: PreTrainedModel, layers: Sequence[LayerShape]) -> float:
    """Least cosine between the centred logits of the two over the last position of three probe sequences."""
    random = np.random.default_rng(0)
    lengths = (_PROBE_TOKENS, 5, 1)
    sequences = [
        SequenceStep(
            request_id=RequestId(f"probe-{index}"),
            token_ids=random.integers(0, model.config.vocab_size, length).astype(np.uint32),
            start=0,
            page_ids=np.array([index], dtype=np.int32),
            num_prompt_tokens=length,
            sampling=SamplingParams(),
        )
        for index, length in enumerate(lengths)
    ]
    layout = StepLayout(sequences, page_size=_PROBE_TOKENS, device=model.device)
    logits = []
    for forward in (general, fused):
        pool = KVPool(layers, num_pages=len(lengths), page_size=_PROBE_TOKENS, dtype=model.dtype, device=model.device)
        with torch.inference_mode():
            rows = forward(layout, PagedAttention(layout, pool))[: len(lengths)].double()
        logits.append(rows - rows.mean(dim=-1, keepdim=True))
    cosine = torch.nn.functional.cosine_similarity(logits[0], logits[1], dim=-1)
    return float(cosine.nan_to_num(-1.0).min())
