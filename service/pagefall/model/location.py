"""Where a model's files are: a folder, a GGUF file inside a folder, or a hub id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.embedded import EMBEDDED_NAME, ensure_embedded

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


class ModelLocation(msgspec.Struct, frozen=True, kw_only=True):
    """What `from_pretrained` is given: `path` is a folder or a hub id, `gguf_file` a file's name inside that folder.

    `revision` is set for hub ids alone.
    """

    path: str
    gguf_file: str | None = None
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        return self.revision is None

    @property
    def gguf_path(self) -> Path | None:
        return None if self.gguf_file is None else Path(self.path) / self.gguf_file

    def __str__(self) -> str:
        return str(self.gguf_path or self.path)

    def keywords(self) -> dict[str, Any]:
        """`from_pretrained`'s keywords beside the path."""
        keywords: dict[str, Any] = {"local_files_only": True} if self.is_local else {"revision": self.revision}
        return keywords if self.gguf_file is None else {**keywords, "gguf_file": self.gguf_file}


def locate(config: ModelConfig) -> tuple[ModelLocation, str]:
    """The model's location and the name it is served under unless the user gave another.

    Makes the embedded model's folder when it is asked for and not there yet (seconds, once per machine). Raises
    `ModelError` for a path that is missing or holds no model. Hub ids are not looked up here.
    """
    if config.model_path is None:
        return ModelLocation(path=str(ensure_embedded())), EMBEDDED_NAME
    path = Path(config.model_path).expanduser()
    if path.is_dir():
        _check_folder(path)
        return ModelLocation(path=str(path)), path.resolve().name
    if path.is_file():
        _check_gguf(path)
        return ModelLocation(path=str(path.parent), gguf_file=path.name), path.stem
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(config.model_path):
        raise ModelError(f"{config.model_path} does not exist: pass a folder, a .gguf file or a hub id.")
    return ModelLocation(path=config.model_path, revision=config.revision or "main"), config.model_path


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        ggufs = sorted(path.name for path in folder.glob("*.gguf"))
        advice = f"pass one of its GGUF files ({', '.join(ggufs)})" if ggufs else "pass the folder that holds it"
        raise ModelError(f"{folder} has no config.json: {advice} to --model-path.")
    if not any(True for pattern in _WEIGHT_PATTERNS for _ in folder.glob(pattern)):
        raise ModelError(f"{folder} has no weights (*.safetensors or pytorch_model*.bin): is the download complete?")


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file: pass a folder, a .gguf file or a hub id to --model-path.")
