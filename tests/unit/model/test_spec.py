"""What is known of a model before its weights are read, and every way to be refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import CONTEXT_LENGTH, KINDS, VOCAB_SIZE, make_tiny, make_tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from pagefall.config import ModelConfig
from pagefall.errors import ConfigError, ModelError
from pagefall.model.attention_probe import probe_attention
from pagefall.model.context import model_context_length
from pagefall.model.kv_pool import LayerShape
from pagefall.model.spec import ModelSpec, inspect, resolve_device, resolve_dtype

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    make_tiny("llama", folder)
    return make_tiny_tokenizer(folder)


def spec_of(path: Path | str, **settings: Any) -> ModelSpec:
    return inspect(ModelConfig(model_path=str(path), device="cpu", **settings))


def rewrite(folder: Path, source: Path, **changes: Any) -> Path:
    """`source`'s files in `folder`, its configuration changed; a value of None removes the entry."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    values = json.loads((source / "config.json").read_text()) | changes
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return folder


def refusal(path: Path | str, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        spec_of(path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_is_known_before_its_weights_are_read(tiny: Path) -> None:
    spec = spec_of(tiny)
    weights = AutoModelForCausalLM.from_pretrained(tiny)
    assert (spec.architecture, spec.model_type, spec.served_name) == ("LlamaForCausalLM", "llama", "tiny-llama")
    assert spec.layers == (LayerShape(2, 16, 16),) * 2
    assert (spec.num_layers, spec.num_attention_heads, spec.vocab_size) == (2, 4, VOCAB_SIZE)
    assert spec.sliding_window == (None, None)
    assert (spec.context_length, spec.dtype, spec.device) == (CONTEXT_LENGTH, torch.float32, CPU)
    assert spec.eos_token_ids == frozenset([1])
    parameters = sum(parameter.nbytes for parameter in weights.parameters())
    assert parameters <= spec.weights_bytes < parameters + 1024
    assert spec.kv_bytes_per_token(2) == 2 * 2 * 2 * 32


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_we_serve_passes_and_tells_its_windows(kind: str, tmp_path: Path) -> None:
    spec = spec_of(make_tiny(kind, tmp_path, num_layers=4))
    config = AutoConfig.from_pretrained(tmp_path)
    if kind == "deepseek_v3":
        assert spec.layers == (LayerShape(4, 24, 12),) * 4
    else:
        heads = config.num_attention_heads if kind == "gpt2" else config.num_key_value_heads
        assert spec.layers == (LayerShape(heads, 16, 16),) * 4
    windows = {
        "mistral": (64,) * 4,
        "gemma2": (64, None) * 2,
        "gemma3_text": (64, None) * 2,
        "gpt_oss": (64, None) * 2,
    }
    assert spec.sliding_window == windows.get(kind, (None,) * 4)


def test_the_served_name_is_the_users_where_given(tiny: Path) -> None:
    assert spec_of(tiny, served_model_name="mine").served_name == "mine"


def test_end_tokens_are_the_union_of_all_three_files(tiny: Path, tmp_path: Path) -> None:
    folder = rewrite(tmp_path / "m", tiny, eos_token_id=[7, 8])
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert spec_of(folder).eos_token_ids == frozenset([1, 7, 8, 9])


def test_context_length_may_be_less_than_the_models_and_not_more(tiny: Path) -> None:
    assert spec_of(tiny, context_length=100).context_length == 100
    with pytest.raises(ConfigError, match=f"--context-length 9000 is more than the {CONTEXT_LENGTH} tokens"):
        spec_of(tiny, context_length=9000)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "default", "rope_theta": 1e4}, 1000),
        ({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, 1000),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 1000}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 250}, 1000),
        ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, 1000),
        (
            {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 250,
                "short_factor": [1.0] * 8,
                "long_factor": [1.0] * 8,
            },
            250,
        ),
    ],
)
def test_scaled_rope_stretches_the_context_only_where_cached_keys_stay_valid(rope: dict[str, Any], length: int) -> None:
    config = LlamaConfig(max_position_embeddings=1000, hidden_size=64, num_attention_heads=4, rope_parameters=rope)
    assert model_context_length(config) == length


@pytest.mark.parametrize(
    ("asked", "checkpoint", "device", "resolved"),
    [
        ("auto", torch.float32, "cpu", torch.float32),
        ("auto", torch.bfloat16, "cpu", torch.bfloat16),
        ("auto", torch.float16, "cpu", torch.bfloat16),
        ("auto", torch.float16, "cuda", torch.float16),
        ("float16", torch.float32, "cpu", torch.float16),
    ],
)
def test_dtype_follows_the_checkpoint_unless_told(
    asked: Any, checkpoint: torch.dtype, device: str, resolved: torch.dtype
) -> None:
    assert resolve_dtype(asked, checkpoint, torch.device(device)) == resolved


def test_a_checkpoint_that_declares_no_dtype_is_taken_as_stored(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path / "stored", dtype=torch.bfloat16)
    folder = rewrite(tmp_path / "undeclared", tmp_path / "stored", dtype=None)
    assert spec_of(folder).dtype == torch.bfloat16


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(ModelError, match="--device cuda"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")


def test_paths_that_are_not_there_or_hold_no_model_are_refused(tiny: Path, tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nothing")
    assert "does not exist" in refusal("nothing.gguf")
    assert "has no config.json" in refusal(tmp_path)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    assert "pass one of its GGUF files (some.gguf)" in refusal(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_bytes((tiny / "config.json").read_bytes())
    assert "has no weights" in refusal(empty)


def test_files_that_are_no_usable_gguf_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.write_text("hello")
    assert "is not a GGUF file" in refusal(file)
    for content in (b"GGUF", b"GGUF\x03\x00\x00\x00", b"GGUF" + bytes([9, 0, 0, 0]) + bytes(16)):
        file.write_bytes(content)
        assert "cannot be used" in refusal(file)


def test_a_gguf_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "nonsense")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "nonsense" in refusal(tmp_path / "odd.gguf")


def test_damaged_json_is_refused(tiny: Path, tmp_path: Path) -> None:
    folder = rewrite(tmp_path / "m", tiny)
    (folder / "config.json").write_text("{")
    assert "not a valid JSON file" in refusal(folder)
    folder = rewrite(tmp_path / "n", tiny)
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text("{")
    assert "generation_config.json is not valid JSON" in refusal(folder)


def test_configurations_that_name_no_known_causal_model_are_refused(tiny: Path, tmp_path: Path) -> None:
    def message(name: str, **changes: Any) -> str:
        return refusal(rewrite(tmp_path / name, tiny, **changes))

    assert "names no model_type" in message("a", model_type=None)
    assert "unknown architecture 'nonsense'" in message("b", model_type="nonsense")
    assert "is an encoder-decoder (t5)" in message("c", model_type="t5", is_encoder_decoder=True)
    assert "does not generate text" in message("d", model_type="vit")
    assert "does not generate text" in message("e", model_type="clip")
    assert "holds a LlamaForSequenceClassification" in message("f", architectures=["LlamaForSequenceClassification"])
    assert "holds a LlamaModel" in message("g", architectures=["LlamaModel"])
    assert "cannot be used" in message("h", hidden_size="wide")


def test_remote_code_is_not_run_unless_trusted(tiny: Path, tmp_path: Path) -> None:
    changes = {"model_type": "brand_new", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.LM"}}
    folder = rewrite(tmp_path / "m", tiny, **changes)
    (folder / "code.py").write_text("raise SystemExit('ran')")
    assert "pass --trust-remote-code" in refusal(folder)


def test_a_hub_that_cannot_be_reached_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "Pass a local folder or a .gguf file" in refusal("some-owner/some-model")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mamba", "linear_attention layers"),
        ("jamba", "linear_attention layers"),
        ("qwen3_next", "linear_attention layers"),
        ("falcon_h1", "hybrid layers"),
        ("llama4_text", "chunked_attention layers"),
        ("deepseek_v32", "indexed_attention layers"),
        ("bert", "is an encoder"),
        ("bloom", "takes no position_ids"),
        ("gpt_neo", "its attention cannot be replaced"),
        ("stablelm", "hands no keywords to its attention"),
        ("diffllama", "attends in 32 places in 16 layers"),
        ("hrm_text", "attends in 128 places"),
        ("minimax_m3_vl_text", "attends with block_indices"),
    ],
)
def test_what_cannot_be_paged_is_refused_by_name(kind: str, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        probe_attention(AutoConfig.for_model(kind), name="m", dtype=torch.bfloat16, trust_remote_code=False)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["mixtral", "gemma4_text", "mimo_v2_flash", "opt", "gptj", "cohere2", "granitemoe"])
def test_other_decoders_pass_too(kind: str) -> None:
    config = AutoConfig.for_model(kind)
    attention = probe_attention(config, name="m", dtype=torch.bfloat16, trust_remote_code=False)
    assert len(attention.layers) == config.num_hidden_layers
    if kind == "mimo_v2_flash":
        assert set(attention.layers) == {LayerShape(4, 192, 128), LayerShape(8, 192, 128)}
