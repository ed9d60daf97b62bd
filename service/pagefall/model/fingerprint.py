"""What makes a model's keys and values what they are, as text and digests that another machine can compare.

The weights are told by their content, never by their name. Everything else that changes a page's bytes comes from the
configuration: its rope settings are kept as text, so that a person can see how two models differ, the rest as a digest
beside the architecture's name. Too many settings in it cost a shared page, one too few a wrong token: so all of them
are, but for those that are known to change nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import cached_file

from pagefall.errors import ModelError
from pagefall.model.file_digests import FileDigests
from pagefall.model.kv_pool import LayerShape
from pagefall.model.location import ModelLocation
from pagefall.model.spec import ModelSpec

_CHECKPOINTS: Final = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""The names `from_pretrained` looks for, in its order: one file, or the index of several."""

_CHANGE_NOTHING: Final = frozenset(
    {
        *("_name_or_path", "transformers_version", "architectures", "auto_map", "use_cache", "return_dict"),
        *("dtype", "torch_dtype"),  # the dtype that computes is a field of its own
        *("rope_parameters", "rope_scaling", "rope_theta"),  # so are these
        *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"),
        *("output_attentions", "output_hidden_states", "initializer_range", "chunk_size_feed_forward"),
    }
)
_MAX_THREADS: Final = 8


class ModelFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The model's part of a `Namespace`, whose fields have the same names.

    `model_digest`: 32 bytes, of the weights. `architecture`: the class, and after a slash 16 hex digits of all its
    settings (and of its own code, where a folder brings any). `rope`: JSON with sorted keys, `{}` without rotation.
    """

    model_digest: bytes
    architecture: str
    rope: str
    compute_dtype: str
    kv_dtype: str
    layout: str


def fingerprint(spec: ModelSpec, *, kv_dtype: torch.dtype, digests: FileDigests) -> ModelFingerprint:
    """Reads the weight files unless `digests` knows them: seconds for a large model, so call it off the event loop.

    A hub model must be in the local cache, as it is once it has been loaded. Raises `ModelError`.
    """
    config = _read_config(spec)
    return ModelFingerprint(
        model_digest=_weights_digest(spec.location, digests),
        architecture=f"{spec.architecture}/{_settings_digest(spec, config).hex()[:16]}",
        rope=_canonical(getattr(config.get_text_config(), "rope_parameters", None) or {}),
        compute_dtype=_name(spec.dtype),
        kv_dtype=_name(kv_dtype),
        layout=layout_name(spec.layers),
    )


def layout_name(layers: Sequence[LayerShape]) -> str:
    """How a page lies in host memory and in the store, e.g. `page-first/planes 30x3x(64+64)`.

    Each run of equal layers is `layers x heads x (key width + value width)`.
    """
    runs = [(len(list(run)), shape) for shape, run in itertools.groupby(layers)]
    shapes = [f"{count}x{shape.num_kv_heads}x({shape.head_dim}+{shape.v_head_dim})" for count, shape in runs]
    return f"page-first/planes {' '.join(shapes)}"


def weight_files(location: ModelLocation) -> list[Path]:
    """The files that `from_pretrained` reads the weights from, in the order of their names. Raises `ModelError`."""
    if location.gguf_path is not None:
        return [location.gguf_path]
    for single, index in _CHECKPOINTS:
        if (path := _find(location, single)) is not None:
            return [path]
        if (path := _find(location, index)) is not None:
            names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
            found = [_find(location, name) for name in names]
            if None not in found:
                return [file for file in found if file is not None]
    raise ModelError(f"The weight files of {location} cannot be found, so its pages cannot be told from another's.")


def _weights_digest(location: ModelLocation, digests: FileDigests) -> bytes:
    """SHA-256 over the files' own SHA-256s, 32 bytes each: what the files are called does not matter."""
    paths = weight_files(location)
    with ThreadPoolExecutor(min(len(paths), _MAX_THREADS), thread_name_prefix="fingerprint") as threads:
        try:
            return hashlib.sha256(b"".join(threads.map(digests.of, paths))).digest()
        except OSError as error:
            raise ModelError(f"The weights of {location} cannot be read: {error}") from error


def _settings_digest(spec: ModelSpec, config: PreTrainedConfig) -> bytes:
    digest = hashlib.sha256(_canonical(_that_matter(config.to_dict())).encode())
    if spec.trust_remote_code:
        for path in _own_code(spec.location):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


def _own_code(location: ModelLocation) -> Iterator[Path]:
    config = _find(location, "config.json")
    if config is not None:
        yield from sorted(config.parent.glob("*.py"))


def _that_matter(value: Any) -> Any:
    """`value` without what changes nothing, in the configurations inside the configuration too."""
    if isinstance(value, dict):
        return {key: _that_matter(inner) for key, inner in value.items() if key not in _CHANGE_NOTHING}
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _read_config(spec: ModelSpec) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        spec.location.path, trust_remote_code=spec.trust_remote_code, **spec.location.keywords()
    )
    return config


def _find(location: ModelLocation, name: str) -> Path | None:
    """A file of the model's folder, or of the hub's local cache; nothing is fetched."""
    path = cached_file(
        location.path,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **location.keywords() | {"local_files_only": True},
    )
    return None if path is None else Path(path)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
