"""The names of the forms in which models write calls and thoughts."""

from __future__ import annotations

from typing import Literal

import msgspec

ToolDialect = Literal["hermes", "llama3", "mistral", "mistral-named", "pythonic", "qwen3-coder", "none"]
"""`mistral-named`: Mistral's since tokenizer version 11, `[TOOL_CALLS]f[ARGS]{...}`."""

Thinking = Literal["deepseek-r1", "qwen3", "none"]
"""`deepseek-r1`: an answer begins within a thought even where no tag says so."""


class ReplyFormat(msgspec.Struct, frozen=True, kw_only=True):
    """`special_tokens`: those of the markers that the tokenizer has as special tokens, with their ids."""

    tools: ToolDialect = "hermes"
    thinking: Thinking = "none"
    special_tokens: tuple[tuple[str, int], ...] = ()
