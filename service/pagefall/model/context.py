"""How long a context a model was made for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedConfig

from pagefall.errors import ConfigError

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len")


def resolve_context_length(config: PreTrainedConfig, asked: int | None, *, name: str) -> int:
    """`asked` (`--context-length`) if given, else all the model has. Raises `ConfigError` where it has less."""
    length = model_context_length(config)
    if asked is None:
        if length is None:
            raise ConfigError(f"{name} does not say how long a context it was made for: pass --context-length.")
        return length
    if length is not None and asked > length:
        raise ConfigError(f"--context-length {asked} is more than the {length} tokens {name} can use.")
    return asked


def model_context_length(config: PreTrainedConfig) -> int | None:
    """Tokens the position embedding covers, None where the configuration names no limit.

    YaRN stretches the length it was trained on by its factor (Peng et al., 2023). LongRoPE and dynamic NTK scaling
    turn *all* keys differently once a sequence outgrows the original length; keys already in pages cannot follow, so
    that length is the limit.
    """
    text_config = config.get_text_config()
    lengths = [value for name in _LENGTH_NAMES if isinstance(value := getattr(text_config, name, None), int)]
    if not lengths:
        return None
    length = lengths[0]
    limits = [length]
    for rope in _rope_settings(text_config):
        original = rope.get("original_max_position_embeddings") or length
        match rope.get("rope_type"):
            case "yarn":
                limits.append(int(original * rope.get("factor", 1.0)))
            case "longrope" | "dynamic":
                return int(min(original, length))
            case _:
                pass
    return max(limits)


def _rope_settings(config: PreTrainedConfig) -> Iterator[dict[str, Any]]:
    """One, or one per kind of layer (Gemma 3)."""
    settings = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in settings:
        yield settings
    else:
        yield from (value for value in settings.values() if isinstance(value, dict))
