"""Reading a checkpoint with `transformers`: complete, or one line that says what is wrong with it."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

from pagefall.errors import ModelError
from pagefall.model.progress import bars_on_terminals_only


def read_weights(path: str, *, dtype: torch.dtype, gguf_file: str | None = None, **keywords: Any) -> PreTrainedModel:
    """The model of a folder, hub id, or `gguf_file` inside a folder (its blocks unpacked), on the CPU in `dtype`.

    `keywords` are `from_pretrained`'s. Shows a progress bar where stderr is a terminal. Raises `ModelError` for files
    that cannot be used, and where any of the weights is missing.
    """
    name = path if gguf_file is None else f"{path}/{gguf_file}"
    if gguf_file is not None:
        keywords |= {"gguf_file": gguf_file, "quantization_config": GgufConfig(dequantize=True)}
    try:
        with bars_on_terminals_only():
            model, report = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, output_loading_info=True, **keywords
            )
    except Exception as error:  # damaged files and missing quantization packages are told in many types
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        raise ModelError(f"The weights of {name} cannot be loaded: {reason}") from error
    if missing := sorted(report["missing_keys"]):  # transformers would serve random numbers in their place
        raise ModelError(f"{name} lacks {len(missing)} of its weights, {missing[0]} among them.")
    return cast("PreTrainedModel", model)
