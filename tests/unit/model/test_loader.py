"""Weights arrive once, in the right dtype, or the reason they do not fits in one line."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny_models import make_tiny, make_tiny_gguf
from transformers import AutoModelForCausalLM

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.loader import load_weights
from pagefall.model.spec import ModelSpec, inspect


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return inspect(ModelConfig(model_path=str(make_tiny("llama", tmp_path)), device="cpu"))


def test_the_model_is_ready_to_serve(spec: ModelSpec) -> None:
    model = load_weights(spec)
    expected = dict(AutoModelForCausalLM.from_pretrained(spec.location.path).named_parameters())
    assert not model.training
    assert all(torch.equal(parameter, expected[name]) for name, parameter in model.named_parameters())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_dtype_is_the_specs(spec: ModelSpec) -> None:
    assert load_weights(msgspec.structs.replace(spec, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_too_little_memory_is_found_before_anything_is_read(spec: ModelSpec) -> None:
    Path(spec.location.path, "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"needs 1048576\.00 GiB for its weights"):
        load_weights(msgspec.structs.replace(spec, weights_bytes=2**50))


def test_a_cut_file_is_one_line(spec: ModelSpec) -> None:
    weights = Path(spec.location.path, "model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError) as caught:
        load_weights(spec)
    assert str(caught.value).startswith(f"The weights of {spec.location} cannot be loaded: ")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_all_its_weights_is_refused(spec: ModelSpec) -> None:
    weights = Path(spec.location.path, "model.safetensors")
    tensors = load_file(weights)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 of its weights, model\.layers\.1\.mlp\.up_proj\.weight among them"):
        load_weights(spec)


def test_a_gguf_file_is_read_as_the_checkpoint_it_was_made_from(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "folder")
    spec = inspect(ModelConfig(model_path=str(make_tiny_gguf(folder, tmp_path / "tiny.gguf")), device="cpu"))
    assert (spec.served_name, spec.model_type, spec.dtype) == ("tiny", "llama", torch.float32)
    assert spec.eos_token_ids == frozenset([1, 3])
    expected = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    read = dict(load_weights(spec).named_parameters())
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)


def test_without_a_terminal_one_line_is_logged_and_no_bar_drawn(
    spec: ModelSpec, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pagefall"):
        load_weights(spec)
    assert len(caplog.records) == 1
    assert capfd.readouterr().err == ""
