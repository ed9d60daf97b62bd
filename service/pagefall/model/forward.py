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
from pagefall.model.constrained import StepMasks
from pagefall.model.fused import FusedForward
from pagefall.model.hf_model import HFForward
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.model.scripting import Scripted
from pagefall.model.step_layout import StepLayout

logger = logging.getLogger(__name__)

_PROBE_LENGTHS = (40, 5, 1)
_PROBE_PAGE_SIZE = 64
_LEAST_SIMILARITY = {torch.float32: 1 - 1e-5, torch.bfloat16: 1 - 1e-2}
"""Cosine of the two forwards' logits, centred. Rounding alone stays well above; a wrong layer falls far below."""


class Forward(Protocol):
    """One forward over a step: logits of `layout.logit_rows`, the padding ones at the end or left out.

    `masks` say which tokens matter; the logits of all of them are returned all the same.
    """

    def __call__(
        self, layout: StepLayout, attention: PagedAttention, masks: StepMasks | None = None
    ) -> torch.Tensor: ...


def choose_forward(
    model: PreTrainedModel,
    layers: Sequence[LayerShape],
    sliding_windows: Sequence[int | None],
    scripted: Scripted,
    *,
    keeps_plain_weights: bool,
) -> Forward:
    """The quickest forward that is right for `model`; see `FusedForward` for `keeps_plain_weights`."""
    general = HFForward(model)
    if not FusedForward.supports(model):
        logger.info("forward: transformers (%s has no fused form on %s)", model.config.model_type, model.device)
        return general
    fused = FusedForward(model, sliding_windows, scripted, keeps_plain_weights=keeps_plain_weights)
    similarity = _similarity(general, fused, model, layers, scripted)
    if similarity < _LEAST_SIMILARITY[model.dtype]:
        logger.warning(
            "forward: transformers, because the fused form of %s differs from it (similarity %.6f)",
            model.config.model_type,
            similarity,
        )
        return general
    logger.info("forward: fused (similarity to transformers on a probe: %.6f)", similarity)
    return fused


def _similarity(
    general: Forward, fused: Forward, model: PreTrainedModel, layers: Sequence[LayerShape], scripted: Scripted
) -> float:
    """Least cosine between the centred logits of the two: three prompts in one step, then a token of one's answer."""
    logits = []
    for forward in (general, fused):
        pool = KVPool(
            layers,
            num_pages=len(_PROBE_LENGTHS),
            page_size=_PROBE_PAGE_SIZE,
            dtype=model.dtype,
            device=model.device,
        )
        random = np.random.default_rng(0)
        prompts = [random.integers(0, model.config.vocab_size, length) for length in _PROBE_LENGTHS]
        answered = np.append(prompts[0], 1)
        steps = [
            [_probe_step(page, prompt, 0, len(prompt)) for page, prompt in enumerate(prompts)],
            [_probe_step(0, answered, len(prompts[0]), len(prompts[0]))],
        ]
        for sequences in steps:
            layout = StepLayout(sequences, page_size=_PROBE_PAGE_SIZE, device=model.device)
            with torch.inference_mode():
                rows = forward(layout, PagedAttention(layout, pool, scripted))[: len(sequences)].double()
            logits.append(rows - rows.mean(dim=-1, keepdim=True))
    half = len(logits) // 2
    cosine = torch.nn.functional.cosine_similarity(torch.cat(logits[:half]), torch.cat(logits[half:]), dim=-1)
    return float(cosine.nan_to_num(-1.0).min())


def _probe_step(page: int, token_ids: np.ndarray, start: int, num_prompt_tokens: int) -> SequenceStep:
    return SequenceStep(
        request_id=RequestId(f"probe-{page}"),
        token_ids=token_ids.astype(np.uint32),
        start=start,
        page_ids=np.array([page], dtype=np.int32),
        num_prompt_tokens=num_prompt_tokens,
        sampling=SamplingParams(),
    )
