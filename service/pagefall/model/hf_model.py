"""Any decoder-only `transformers` model, with its attention replaced by Pagefall's.

`transformers` looks its attention function up by name in a registry and hands every forward keyword through to it.
Pagefall registers `ATTENTION_NAME` once; a step's `PagedAttention` travels as the keyword `paged_attention`. No mask is
built (the mask function registered beside it returns None) and no `Cache` object is used.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from pagefall.model.attention import PagedAttention
from pagefall.model.attention_options import AttentionOptions
from pagefall.model.constrained import StepMasks
from pagefall.model.step_layout import StepLayout

ATTENTION_NAME = "pagefall"


def register_attention() -> None:
    """Make `ATTENTION_NAME` known to `transformers`. Idempotent."""
    AttentionInterface.register(ATTENTION_NAME, _attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    paged_attention: PagedAttention,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """`transformers`' attention signature: query, key, value `[1, num_heads, num_rows, head_dim]`."""
    options = AttentionOptions(
        scale=scaling if scaling is not None else query.shape[-1] ** -0.5,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    output = paged_attention.attend(
        cast("int", module.layer_idx),
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        options,
    )
    return output.view(1, output.shape[0], query.shape[1], -1), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Causality, windows and padding are the layout's business."""


class HFForward:
    """The forward of an unmodified `transformers` model."""

    def __init__(self, model: PreTrainedModel) -> None:
        register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, layout: StepLayout, attention: PagedAttention, masks: StepMasks | None = None) -> torch.Tensor:
        """Logits of `layout.logit_rows`, `[len(logit_rows), vocab_size]`."""
        keywords: dict[str, Any] = {"logits_to_keep": layout.logit_rows} if self._keeps_logits else {}
        output = self._model(
            input_ids=layout.token_ids[None],
            position_ids=layout.position_ids[None],
            use_cache=False,
            paged_attention=attention,
            **keywords,
        )
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_logits else logits[layout.logit_rows]
