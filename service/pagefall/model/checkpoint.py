"""The dtype a checkpoint was written in."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from pagefall.model.gguf import gguf_dtype
from pagefall.model.location import ModelLocation

_SAFETENSORS_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def checkpoint_dtype(config: PreTrainedConfig, location: ModelLocation) -> torch.dtype:
    """What the configuration says, else what most numbers are stored as. Blocks of a quantized GGUF become bfloat16.

    A checkpoint that tells in neither way is float32.
    """
    if location.gguf_path is not None:
        return gguf_dtype(location.gguf_path)
    declared: str | torch.dtype | None = config.dtype or config.get_text_config().dtype
    if declared is not None:
        return declared if isinstance(declared, torch.dtype) else getattr(torch, declared)
    stored = sorted(Path(location.path).glob("*.safetensors")) if location.is_local else []
    return _stored_dtype(stored[0]) if stored else torch.float32


def _stored_dtype(safetensors: Path) -> torch.dtype:
    """By the file's header: 8 bytes of length (little-endian), then that much JSON (safetensors' format)."""
    with safetensors.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    num_bytes: Counter[str] = Counter()
    for tensor in header.values():
        num_bytes[tensor["dtype"]] += tensor["data_offsets"][1] - tensor["data_offsets"][0]
    return _SAFETENSORS_DTYPES.get(num_bytes.most_common(1)[0][0], torch.float32)
