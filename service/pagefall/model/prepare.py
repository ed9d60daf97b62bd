"""Everything that is done to a model before its weights are loaded."""

from __future__ import annotations

import msgspec
import torch

from pagefall.config import ModelConfig
from pagefall.model.gguf import unpack
from pagefall.model.memory import check_weights_fit, free_host_memory
from pagefall.model.spec import ModelSpec, inspect


def prepare(config: ModelConfig) -> ModelSpec:
    """`inspect`, and a GGUF file that is served for the first time is unpacked, once it is known that it can be served.

    Raises `ModelError` and `ConfigError` like `inspect`, and `ModelError` where memory or disk do not suffice.
    """
    spec = inspect(config)
    gguf = spec.location.gguf_path
    if gguf is None:
        return spec
    check_weights_fit(msgspec.structs.replace(spec, device=torch.device("cpu")), free_host_memory())
    unpack(gguf, config.dtype)
    return inspect(config)
