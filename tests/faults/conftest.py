"""Tiny models, loaded once, and what `transformers` answers with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine_rig import greedy_by_transformers
from tests.faults.names import Names
from tests.faults.rig import NUM_ANSWER_TOKENS, LoadedModel, TokenList
from tests.tiny_models import make_tiny, make_tiny_tokenizer

from pagefall.actors.runner import DeviceThread


class Truth(Protocol):
    def __call__(self, prompt: TokenList, num_tokens: int = NUM_ANSWER_TOKENS, /) -> TokenList:
        """The greedy answer to a prompt, computed without any cache of ours."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(make_tiny("llama", tmp_path_factory.mktemp("weights") / "tiny"))


@pytest.fixture(scope="session")
def thread() -> Iterator[DeviceThread]:
    """Computes everything, on one core: with models so tiny two would wait for each other most of the time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with DeviceThread() as thread:
        thread.call(torch.set_num_threads, 1)
        yield thread
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def loaded(checkpoint: Path, thread: DeviceThread) -> LoadedModel:
    return LoadedModel(checkpoint, thread)


@pytest.fixture(scope="session")
def truth(checkpoint: Path) -> Truth:
    @cache
    def answer(prompt: TokenList, num_tokens: int = NUM_ANSWER_TOKENS) -> TokenList:
        return greedy_by_transformers(checkpoint, [prompt], num_tokens)[0]

    return answer


@pytest.fixture(scope="session")
def other_checkpoint(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same under the same name, but for one number of its weights."""
    other = shutil.copytree(checkpoint, tmp_path_factory.mktemp("other-weights") / checkpoint.name)
    weights = load_file(other / "model.safetensors")
    weights["model.layers.0.self_attn.v_proj.weight"][0, 0] += 8.0
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return other


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)
