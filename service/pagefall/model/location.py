"""Where a model's files are: a folder, a GGUF file inside a folder, or a hub id."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.embedded import EMBEDDED_NAME, ensure_embedded
from pagefall.model.gguf import find_unpacked
from pagefall.model.hub import why_unreachable

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


class ModelLocation(msgspec.Struct, frozen=True, kw_only=True):
    """What `from_pretrained` is given: `path` is a folder or a hub id, `gguf_file` a file's name inside that folder.

    `revision` is set for hub ids alone. `why_offline`: the hub cannot be asked, only its local cache can serve.
    """

    path: str
    gguf_file: str | None = None
    revision: str | None = None
    why_offline: str | None = None

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
        keywords: dict[str, Any] = {"local_files_only": self.is_local or self.why_offline is not None}
        if self.revision is not None:
            keywords["revision"] = self.revision
        if self.gguf_file is not None:
            keywords["gguf_file"] = self.gguf_file
        return keywords


def locate(config: ModelConfig) -> tuple[ModelLocation, str]:
    """The model's location and the name it is served under unless the user gave another.

    Makes the embedded model's folder when it is asked for and not there yet (seconds, once per machine); another GGUF
    file is its folder once that has been made (see `prepare`). Raises `ModelError` for a path that is missing or holds
    no model. Whether the hub has a model is not looked up here, only whether the hub answers.
    """
    if config.model_path is None:
        return ModelLocation(path=str(ensure_embedded())), EMBEDDED_NAME
    path = Path(config.model_path).expanduser()
    if path.is_dir():
        _check_folder(path)
        return ModelLocation(path=str(path)), path.resolve().name
    if path.is_file():
        _check_gguf(path)
        if (unpacked := find_unpacked(path, config.dtype)) is not None:
            return ModelLocation(path=str(unpacked)), path.stem
        return ModelLocation(path=str(path.parent), gguf_file=path.name), path.stem
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(config.model_path):
        raise ModelError(f"{config.model_path} does not exist: pass a folder, a .gguf file or a hub id.")
    return _on_hub(config.model_path, config.revision), config.model_path


def locate_tokenizer(config: ModelConfig, model: ModelLocation) -> ModelLocation:
    """`--tokenizer-path`, a folder or a hub id, or with the model. Raises `ModelError` for a path that is missing."""
    if config.tokenizer_path is None:
        return model
    path = Path(config.tokenizer_path).expanduser()
    if path.is_dir():
        return ModelLocation(path=str(path))
    if not _HUB_ID.fullmatch(config.tokenizer_path):
        raise ModelError(f"--tokenizer-path {config.tokenizer_path} does not exist: pass a folder or a hub id.")
    return _on_hub(config.tokenizer_path, None)


def _on_hub(hub_id: str, revision: str | None) -> ModelLocation:
    revision = revision or "main"
    return ModelLocation(path=hub_id, revision=revision, why_offline=why_unreachable(hub_id, revision))


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
