"""The token ids that end a model's answer, from the small files beside its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import cached_file

from pagefall.errors import ModelError
from pagefall.model.gguf import gguf_end_token_ids
from pagefall.model.location import ModelLocation


def end_token_ids(config: PreTrainedConfig, location: ModelLocation) -> frozenset[int]:
    """The union of what the model's, the generation's and the tokenizer's configuration name. May be empty.

    Chat models often name the end of a turn in one of the three alone. Raises `ModelError` for damaged JSON.
    """
    ids = _as_ids(config.get_text_config().eos_token_id) | _as_ids(getattr(config, "eos_token_id", None))
    if location.gguf_path is not None:
        return ids | gguf_end_token_ids(location.gguf_path)
    ids |= _as_ids(_read(location, "generation_config.json").get("eos_token_id"))
    return ids | _tokenizer_end(location)


def _tokenizer_end(location: ModelLocation) -> frozenset[int]:
    """`eos_token` is text; its id is in the list of added tokens of either file."""
    tokenizer_config = _read(location, "tokenizer_config.json")
    end = tokenizer_config.get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    if text is None:
        return frozenset()
    for token_id, token in tokenizer_config.get("added_tokens_decoder", {}).items():
        if token.get("content") == text:
            return frozenset([int(token_id)])
    added: list[dict[str, Any]] = _read(location, "tokenizer.json").get("added_tokens", [])
    return frozenset(token["id"] for token in added if token["content"] == text)


def _read(location: ModelLocation, name: str) -> dict[str, Any]:
    """A JSON object of the model's folder, empty where there is no such file."""
    path = cached_file(location.path, name, _raise_exceptions_for_missing_entries=False, **location.keywords())
    if path is None:
        return {}
    try:
        value: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}.") from error
    return value


def _as_ids(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)
