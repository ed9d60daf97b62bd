"""Models whose pages differ have different fingerprints; one and the same model has one wherever it lies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_models import make_tiny, make_tiny_gguf

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.file_digests import FileDigests
from pagefall.model.fingerprint import ModelFingerprint, fingerprint, layout_name, weight_files
from pagefall.model.kv_pool import LayerShape
from pagefall.model.location import ModelLocation
from pagefall.model.spec import inspect


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "elsewhere"))


@pytest.fixture
def of(tmp_path: Path) -> Callable[[Path], ModelFingerprint]:
    def of(folder: Path) -> ModelFingerprint:
        spec = inspect(ModelConfig(model_path=str(folder), served_model_name="same", device="cpu"))
        return fingerprint(spec, kv_dtype=spec.dtype, digests=FileDigests(tmp_path / "digests"))

    return of


Of = Callable[[Path], ModelFingerprint]


def differing(one: ModelFingerprint, other: ModelFingerprint) -> set[str]:
    return {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)}


def change_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_copy_under_another_name_is_the_same_model(of: Of, tiny: Path, copy: Path) -> None:
    assert of(tiny) == of(copy)


def test_its_fields_say_what_the_model_is(of: Of, tiny: Path) -> None:
    it = of(tiny)
    assert len(it.model_digest) == 32
    assert it.architecture.startswith("LlamaForCausalLM/")
    assert it.rope == '{"rope_theta":10000.0,"rope_type":"default"}'
    assert (it.compute_dtype, it.kv_dtype) == ("float32", "float32")
    assert it.layout == "page-first/planes 2x2x(16+16)"


def test_one_other_weight_is_another_model(of: Of, tiny: Path, copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["model.layers.0.self_attn.k_proj.weight"][3, 5] += 1e-3
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert differing(of(tiny), of(copy)) == {"model_digest"}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rope_parameters": {"rope_theta": 10001.0, "rope_type": "default"}}, "rope"),
        ({"rms_norm_eps": 1e-5}, "architecture"),
        ({"hidden_act": "gelu"}, "architecture"),
    ],
)
def test_a_setting_that_changes_the_bytes_is_another_model(
    of: Of, tiny: Path, copy: Path, changes: dict[str, object], field: str
) -> None:
    assert differing(of(tiny), of(change_config(copy, **changes))) == {field}


def test_another_sliding_window_is_another_model(of: Of, tmp_path: Path) -> None:
    one = make_tiny("mistral", tmp_path / "one")
    other = change_config(Path(shutil.copytree(one, tmp_path / "other")), sliding_window=32)
    assert differing(of(one), of(other)) == {"architecture"}


def test_settings_that_change_nothing_do_not_matter(of: Of, tiny: Path, copy: Path) -> None:
    change_config(copy, eos_token_id=[1, 2], transformers_version="5.0", use_cache=False, id2label={"0": "x"})
    assert of(tiny) == of(copy)


def test_another_kv_dtype_is_another_fingerprint(tiny: Path, tmp_path: Path) -> None:
    spec = inspect(ModelConfig(model_path=str(tiny), device="cpu"))
    digests = FileDigests(tmp_path)
    one, other = (fingerprint(spec, kv_dtype=dtype, digests=digests) for dtype in (torch.float32, torch.float16))
    assert differing(one, other) == {"kv_dtype"}


def test_code_that_a_trusted_folder_brings_counts(tiny: Path, copy: Path, tmp_path: Path) -> None:
    (copy / "modeling.py").write_text("x = 1")
    digests = FileDigests(tmp_path)
    for trust, fields in ((True, {"architecture"}), (False, set[str]())):
        specs = [inspect(ModelConfig(model_path=str(f), device="cpu", trust_remote_code=trust)) for f in (tiny, copy)]
        one, other = (fingerprint(spec, kv_dtype=spec.dtype, digests=digests) for spec in specs)
        assert differing(one, other) == fields


def test_all_shards_are_weight_files_and_nothing_else_in_the_folder(tiny: Path, tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in [*shards, "consolidated.safetensors", "pytorch_model.bin"]:
        shutil.copy(tiny / "model.safetensors", tmp_path / name)
    index = {"weight_map": {"a": shards[1], "b": shards[0], "c": shards[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    location = ModelLocation(path=str(tmp_path))
    assert weight_files(location) == [tmp_path / name for name in shards]
    (tmp_path / shards[0]).unlink()
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "pytorch_model.bin.index.json")
    assert weight_files(location) == [tmp_path / "pytorch_model.bin"]


def test_a_gguf_file_is_its_own_weights(tiny: Path, tmp_path: Path) -> None:
    path = make_tiny_gguf(tiny, tmp_path / "tiny.gguf")
    assert weight_files(ModelLocation(path=str(tmp_path), gguf_file="tiny.gguf")) == [path]


def test_weights_that_cannot_be_found_are_told_in_one_line(tmp_path: Path) -> None:
    for location in (ModelLocation(path=str(tmp_path)), ModelLocation(path="some-owner/some-model", revision="main")):
        with pytest.raises(ModelError, match="cannot be found, so its pages cannot be told from another's"):
            weight_files(location)


def test_a_layout_names_each_run_of_equal_layers() -> None:
    wide, narrow = LayerShape(8, 128, 128), LayerShape(1, 24, 12)
    assert layout_name([wide, wide, narrow]) == "page-first/planes 2x8x(128+128) 1x1x(24+12)"
    assert layout_name([wide, narrow, wide]) != layout_name([wide, wide, narrow])
