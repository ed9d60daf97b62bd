"""The embedded model."""

from __future__ import annotations

from pathlib import Path

EMBEDDED_NAME = "SmolLM2-135M-Instruct"


def ensure_embedded() -> Path:
    raise NotImplementedError
