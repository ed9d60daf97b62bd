"""Loading a model's weights: once, straight into their dtype and onto their device."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from pagefall.errors import ModelError
from pagefall.model.memory import check_weights_fit, free_memory
from pagefall.model.progress import bars_on_terminals_only
from pagefall.model.spec import ModelSpec

logger = logging.getLogger(__name__)


def load_weights(spec: ModelSpec) -> PreTrainedModel:
    """The model in eval mode on `spec.device` in `spec.dtype`, without gradients; GGUF blocks are unpacked.

    Shows a progress bar where stderr is a terminal. Raises `ModelError` where memory does not suffice (before anything
    is read) and where the files turn out unusable.
    """
    check_weights_fit(spec, free_memory(spec.device))
    keywords: dict[str, Any] = dict(spec.location.keywords())
    if spec.location.gguf_file is not None:
        keywords["quantization_config"] = GgufConfig(dequantize=True)
    started = time.monotonic()
    try:
        with bars_on_terminals_only():
            model, report = AutoModelForCausalLM.from_pretrained(
                spec.location.path,
                dtype=spec.dtype,
                trust_remote_code=spec.trust_remote_code,
                output_loading_info=True,
                **keywords,
            )
    except Exception as error:  # damaged files and missing quantization packages are told in many types
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        raise ModelError(f"The weights of {spec.location} cannot be loaded: {reason}") from error
    if missing := sorted(report["missing_keys"]):  # transformers would serve random numbers in their place
        raise ModelError(f"{spec.location} lacks {len(missing)} of its weights, {missing[0]} among them.")
    model.to(spec.device)
    model.eval().requires_grad_(requires_grad=False)
    logger.info("loaded %s in %.1f s", spec.served_name, time.monotonic() - started)
    return cast("PreTrainedModel", model)
