"""The tokenizer of `pagefall router`. Apart, since it imports transformers, and that imports torch if it can."""

from __future__ import annotations

import logging
from typing import Final

from pagefall.actors.encoding import PromptEncoder
from pagefall.cli.tokenizer_only import load_tokenizer_only
from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.router.config import RoutingConfig

_log = logging.getLogger("pagefall.router")

_MAX_WAITING: Final = 256
"""Long prompts that may wait to be tokenised; beyond that they are routed as text."""

_MAX_INLINE: Final = 4000
"""Characters: so many take half a millisecond, and a thread's answer takes as long to be heard of."""


def load_encoder(config: RoutingConfig) -> PromptEncoder | None:
    """Takes seconds. None where nobody named a model and the embedded one is not installed: prompts stay text then.

    Raises `ModelError` for a tokenizer that was named and cannot be had.
    """
    model = ModelConfig(
        model_path=config.model_path,
        tokenizer_path=config.tokenizer_path,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
    )
    try:
        tokenizer = load_tokenizer_only(model)
    except ModelError as error:
        if config.tokenizer_path is not None or config.model_path is not None:
            raise
        _log.warning("prompts are routed as text, without a tokenizer: %s", error)
        return None
    return PromptEncoder(tokenizer, max_waiting=_MAX_WAITING, max_inline=_MAX_INLINE)
