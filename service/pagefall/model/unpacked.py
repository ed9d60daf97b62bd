"""Where a GGUF file's unpacked folder is, and whether it can be used. Apart from what makes it, and free of torch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import transformers
from safetensors import SafetensorError, safe_open

from pagefall.config import Dtype

_FORMAT = "2"
"""Raised when the folder's content changes for the same GGUF and the same transformers."""


def cache_folder() -> Path:
    """`PAGEFALL_CACHE_DIR`, else `pagefall` in the user's cache folder (XDG base directory specification)."""
    if own := os.environ.get("PAGEFALL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagefall"


def find_unpacked(gguf: Path, dtype: Dtype) -> Path | None:
    """The folder that `gguf.unpack` has made of the file as it is now, None if there is none or it is damaged."""
    folder = unpacked_folder(gguf, dtype)
    return folder if is_whole(folder) else None


def unpacked_folder(gguf: Path, dtype: Dtype) -> Path:
    """Where `gguf` is unpacked to. The name changes with the file, the dtype, and what unpacks it.

    The file is known by name, size, time of change, and its head, which has the metadata.
    """
    stat = gguf.stat()
    identity = (_FORMAT, transformers.__version__, dtype, gguf.name, str(stat.st_size), str(stat.st_mtime_ns))
    digest = hashlib.sha256("\0".join(identity).encode())
    with gguf.open("rb") as file:
        digest.update(file.read(1 << 20))
    return cache_folder() / "models" / f"{gguf.stem}-{digest.hexdigest()[:16]}"


def is_whole(folder: Path) -> bool:
    """Whether everything is in `folder` and readable. Opening a safetensors file checks its size against its header."""
    try:
        documents = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
        index = documents.get("model.safetensors.index.json", {"weight_map": {"": "model.safetensors"}})
        for name in set(index["weight_map"].values()):  # of large models there are several
            with safe_open(folder / name, framework="np"):
                pass
        return "config.json" in documents
    except (OSError, ValueError, KeyError, SafetensorError):
        return False
