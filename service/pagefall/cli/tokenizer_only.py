"""A model's tokenizer without the model and without torch, for commands that only count tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.embedded_file import find_embedded_gguf
from pagefall.model.hub import why_unreachable
from pagefall.model.unpacked import find_unpacked
from pagefall.text.tokenizer import Tokenizer, load_tokenizer

_UNPACK: Final = (
    "import sys, pathlib; from pagefall.model.gguf import unpack; unpack(pathlib.Path(sys.argv[1]), 'auto')"
)


def load_tokenizer_only(config: ModelConfig) -> Tokenizer:
    """The tokenizer that a server with this `config` would have: of `tokenizer_path`, `model_path`, or the embedded
    model. A folder needs no weights.

    A GGUF file that was never served is unpacked first, by a process of its own, as that needs torch. Raises
    `ModelError`.
    """
    name = config.tokenizer_path or config.model_path
    if name is None:
        return _load(_unpacked(find_embedded_gguf()), config)
    path = Path(name).expanduser()
    if path.is_dir():
        return _load(path, config)
    if path.is_file():
        return _load(_unpacked(path), config)
    if path.suffix == ".gguf" or name.startswith((".", "/", "~")) or name.count("/") > 1:
        flag = "--tokenizer-path" if config.tokenizer_path else "--model-path"
        raise ModelError(f"{flag} {name} does not exist: pass a folder, a .gguf file or a hub id.")
    revision = config.revision or "main"
    return load_tokenizer(
        name,
        revision=revision,
        local_files_only=why_unreachable(name, revision) is not None,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
    )


def _load(folder: Path, config: ModelConfig) -> Tokenizer:
    return load_tokenizer(
        folder,
        local_files_only=True,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
    )


def _unpacked(gguf: Path) -> Path:
    folder = find_unpacked(gguf, "auto")
    if folder is not None:
        return folder
    sys.stderr.write(f"unpacking {gguf.name} for its tokenizer, once\n")
    done = subprocess.run([sys.executable, "-c", _UNPACK, str(gguf)], capture_output=True, text=True, check=False)  # noqa: S603
    folder = find_unpacked(gguf, "auto")
    if folder is None:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise ModelError(f"No tokenizer could be made of {gguf}: {reason}")
    return folder
