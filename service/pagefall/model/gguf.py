"""A GGUF file is unpacked once, into a folder of the user's cache; every later start reads that folder.

Reading the file itself takes `transformers` a hundred times as long.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

from pagefall.config import Dtype
from pagefall.errors import ModelError
from pagefall.model.progress import bars_on_terminals_only
from pagefall.model.unpacked import cache_folder, find_unpacked, is_whole, unpacked_folder
from pagefall.model.weights import read_weights

__all__ = ["cache_folder", "find_unpacked", "gguf_dtype", "gguf_end_token_ids", "unpack"]

_END_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

logger = logging.getLogger(__name__)


def unpack(gguf: Path, dtype: Dtype) -> Path:
    """The folder with `gguf` as safetensors and its tokenizer, made now if it is missing or damaged.

    Blocks of quantized files become `dtype`; with `auto`, bfloat16, and other files stay what they are. Safe when
    several processes start at once: one makes it, the others wait. Raises `ModelError`.
    """
    folder = unpacked_folder(gguf, dtype)
    if is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{folder.name}.lock")):
            if not is_whole(folder):  # another process may have made it while this one waited
                logger.info("unpacking %s into %s, once: later starts take seconds", gguf, folder)
                _make(gguf, folder, dtype)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{gguf} cannot be unpacked into {folder.parent}: {error}. Set PAGEFALL_CACHE_DIR to a writable folder "
            "with space."
        ) from error
    return folder


def gguf_end_token_ids(gguf: Path) -> frozenset[int]:
    """The ids with which the file's metadata says that a text, a turn or a message ends."""
    metadata, _ = read_gguf_metadata(str(gguf))
    return frozenset(metadata[key] for key in _END_KEYS if key in metadata)


def gguf_dtype(gguf: Path) -> torch.dtype:
    """What most of the file's numbers are stored as, bfloat16 where they are quantized blocks."""
    return GgufHeader.from_file(str(gguf)).dtype or torch.bfloat16


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel lets go of it when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(gguf: Path, folder: Path, dtype: Dtype) -> None:
    """The folder appears under its name only when it is complete. Call under the lock."""
    partial = folder.with_name(f".{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        _write(gguf, partial, dtype)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # gigabytes, if the disk ran full


def _write(gguf: Path, folder: Path, dtype: Dtype) -> None:
    torch_dtype: torch.dtype = gguf_dtype(gguf) if dtype == "auto" else getattr(torch, dtype)
    model = read_weights(str(gguf.parent), dtype=torch_dtype, gguf_file=gguf.name, local_files_only=True)
    assert model.generation_config is not None
    model.generation_config.eos_token_id = sorted(gguf_end_token_ids(gguf)) or None
    with bars_on_terminals_only():
        model.save_pretrained(folder)
        try:
            AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(folder)
        except Exception as error:  # noqa: BLE001 - conversions fail in many types; whoever loads it says what to do
            logger.warning("the tokenizer in %s cannot be used: %s", gguf, error)
