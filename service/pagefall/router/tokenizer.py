"""The served model's tokenizer for the router. Apart, since it imports transformers, and that imports torch."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from pagefall.actors.encoding import PromptEncoder
from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.location import ModelLocation, locate, locate_tokenizer
from pagefall.router.config import RoutingConfig
from pagefall.text.tokenizer import load_tokenizer

_log = logging.getLogger("pagefall.router")

_MAX_WAITING: Final = 256
"""Long prompts that may wait to be tokenised; beyond that they are routed as text."""


def load_encoder(config: RoutingConfig) -> PromptEncoder | None:
    """Takes seconds. None where nobody named a model and the embedded one is not installed: prompts stay text then.

    Raises `ModelError` for a tokenizer that was named and cannot be had.
    """
    is_named = config.tokenizer_path is not None or config.model_path is not None
    try:
        location = _location(config)
        tokenizer = load_tokenizer(
            location.path,
            trust_remote_code=config.trust_remote_code,
            chat_template=config.chat_template,
            **location.keywords(),
        )
    except ModelError as error:
        if is_named:
            raise
        _log.warning("prompts are routed as text, without a tokenizer: %s", error)
        return None
    return PromptEncoder(tokenizer, max_waiting=_MAX_WAITING)


def _location(config: RoutingConfig) -> ModelLocation:
    """Weights are not needed, so a folder may hold the tokenizer alone."""
    path = config.tokenizer_path or config.model_path
    if path is not None and Path(path).expanduser().is_dir():
        return ModelLocation(path=str(Path(path).expanduser()))
    model = ModelConfig(model_path=config.model_path, tokenizer_path=config.tokenizer_path, revision=config.revision)
    if config.tokenizer_path is not None:
        return locate_tokenizer(model, ModelLocation(path=config.tokenizer_path))
    return locate(model)[0]
