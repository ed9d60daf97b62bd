"""Tiny models, loaded once, and what `transformers` answers with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.engine_rig import greedy_by_transformers
from tests.faults.rig import NUM_ANSWER_TOKENS, LoadedModel, TokenList
from tests.tiny_models import make_tiny

from pagefall.actors.runner import DeviceThread

Truth = Callable[[TokenList], TokenList]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("weights") / "tiny")


@pytest.fixture(scope="session")
def thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceThread]:
    """Computes everything. Digests of weights are remembered in a folder of the tests' own meanwhile.

    One core is best for models so tiny: two would wait for each other, long where others use them.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, DeviceThread() as thread:
        patch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        thread.call(torch.set_num_threads, 1)
        yield thread
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def loaded(checkpoint: Path, thread: DeviceThread) -> LoadedModel:
    return LoadedModel(checkpoint, thread)


@pytest.fixture(scope="session")
def truth(checkpoint: Path) -> Truth:
    """The greedy answer to a prompt, computed without any cache of ours."""

    @cache
    def answer(prompt: TokenList) -> TokenList:
        return greedy_by_transformers(checkpoint, [prompt], NUM_ANSWER_TOKENS)[0]

    return answer
