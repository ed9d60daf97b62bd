"""Everything known about a model before its weights are loaded, and every reason not to serve it.

The law of this file: nothing here reads weights. What the configuration alone cannot say reliably (which layers
attend, with how many key/value heads, within which window) is asked of the model itself, built on the meta device.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.gguf import GgufHeader
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from pagefall.config import Device, Dtype, ModelConfig
from pagefall.errors import ModelError
from pagefall.model.attention_probe import probe_attention
from pagefall.model.checkpoint import checkpoint_dtype
from pagefall.model.context import resolve_context_length
from pagefall.model.end_tokens import end_token_ids
from pagefall.model.kv_pool import LayerShape
from pagefall.model.location import ModelLocation, locate

_GENERATIVE_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served here.

    `layers[i]` and `sliding_window[i]` describe attention layer `i`; a window of None sees the whole context.
    `context_length` is what one request may use: prompt and answer. `weights_bytes` is what the weights will take in
    `dtype` once loaded.
    """

    location: ModelLocation
    served_name: str
    architecture: str
    model_type: str
    layers: tuple[LayerShape, ...]
    sliding_window: tuple[int | None, ...]
    num_attention_heads: int
    vocab_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    weights_bytes: int
    dtype: torch.dtype
    device: torch.device
    trust_remote_code: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of one token's keys and values in all layers, at `itemsize` bytes a number."""
        return itemsize * sum(layer.num_kv_heads * (layer.head_dim + layer.v_head_dim) for layer in self.layers)


def inspect(config: ModelConfig) -> ModelSpec:
    """Resolve `config` into a model that can be served.

    Raises `ModelError` (one line) for a model that cannot be, `ConfigError` for a `--context-length` it does not have.
    """
    device = resolve_device(config.device)
    location, default_name = locate(config)
    model_config = _read_config(location, trust_remote_code=config.trust_remote_code)
    _check_generative(model_config, location)
    dtype = resolve_dtype(config.dtype, checkpoint_dtype(model_config, location), device)
    attention = probe_attention(
        model_config, name=str(location), dtype=dtype, trust_remote_code=config.trust_remote_code
    )
    return ModelSpec(
        location=location,
        served_name=config.served_model_name or default_name,
        architecture=attention.architecture,
        model_type=model_config.model_type,
        layers=attention.layers,
        sliding_window=attention.sliding_window,
        num_attention_heads=attention.num_heads,
        vocab_size=model_config.get_text_config().vocab_size,
        context_length=resolve_context_length(model_config, config.context_length, name=str(location)),
        eos_token_ids=end_token_ids(model_config, location),
        weights_bytes=attention.weights_bytes,
        dtype=dtype,
        device=device,
        trust_remote_code=config.trust_remote_code,
    )


def resolve_device(asked: Device) -> torch.device:
    """`auto` is the first of cuda, mps and cpu that is there. Raises `ModelError` for one that is not."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return torch.device(next(name for name, is_present in present.items() if is_present))
    if not present[asked]:
        raise ModelError(f"--device {asked}: this machine or this build of torch has none. Pass --device auto.")
    return torch.device(asked)


def resolve_dtype(asked: Dtype, checkpoint: torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own, but bfloat16 for a float16 checkpoint on a CPU, which computes it faster."""
    if asked != "auto":
        return getattr(torch, asked)  # type: ignore[no-any-return]
    if checkpoint == torch.float16 and device.type == "cpu":
        return torch.bfloat16
    return checkpoint


def _read_config(location: ModelLocation, *, trust_remote_code: bool) -> PreTrainedConfig:
    """`transformers`' configuration of the model, with its many ways to fail told in one line each."""
    if location.gguf_path is not None:
        _check_gguf_tensors(location)
    try:
        values, _ = PreTrainedConfig.get_config_dict(location.path, **location.keywords())
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        if location.is_local:
            raise ModelError(f"The configuration of {location} cannot be read: {_first_line(error)}") from error
        reason = _first_line(error)
        if location.why_offline is not None:
            reason = f"the hub cannot be reached ({location.why_offline}) and its local cache has no such model."
        raise ModelError(
            f"{location} is no folder here and cannot be fetched from the model hub: {reason} "
            "Pass a local folder or a .gguf file to --model-path instead."
        ) from error
    model_type = values.get("model_type")
    if model_type is None:
        raise ModelError(f"The config.json of {location} names no model_type.")
    needs_code = "AutoConfig" in values.get("auto_map", {}) and model_type not in CONFIG_MAPPING_NAMES
    if needs_code and not trust_remote_code:
        raise ModelError(f"{location} brings its own code: pass --trust-remote-code if you trust it.")
    if not needs_code and model_type not in CONFIG_MAPPING_NAMES:
        raise ModelError(f"{location} has the unknown architecture {model_type!r}: this transformers does not have it.")
    return _parse_config(values, location, needs_code=needs_code)


def _parse_config(values: dict[str, Any], location: ModelLocation, *, needs_code: bool) -> PreTrainedConfig:
    try:
        if needs_code:
            config: PreTrainedConfig = AutoConfig.from_pretrained(
                location.path, trust_remote_code=True, **location.keywords()
            )
        else:
            config = AutoConfig.for_model(values["model_type"]).from_dict(values)
    except Exception as error:  # remote code and config classes check their values in ways of their own
        raise ModelError(f"The config.json of {location} cannot be used: {_first_line(error)}") from error
    return config


def _check_gguf_tensors(location: ModelLocation) -> None:
    """Only the header is read."""
    try:
        GgufHeader.from_file(str(location.gguf_path))
    except (OSError, ValueError, KeyError, IndexError, UnicodeDecodeError, struct.error) as error:
        raise ModelError(f"{location} cannot be used: {_first_line(error)}") from error


def _check_generative(config: PreTrainedConfig, location: ModelLocation) -> None:
    if config.is_encoder_decoder:
        raise ModelError(f"{location} is an encoder-decoder ({config.model_type}): only decoders are served.")
    has_remote_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not has_remote_code:
        raise ModelError(
            f"{location} ({config.model_type}) does not generate text: transformers has no causal language "
            "model of this kind."
        )
    architectures = getattr(config, "architectures", None) or []
    if architectures and not any(name.endswith(_GENERATIVE_SUFFIXES) for name in architectures):
        raise ModelError(f"{location} holds a {architectures[0]}, which has no language-model head to generate with.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0]
