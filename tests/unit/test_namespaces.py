"""Two servers share pages only when they compute the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_models import make_tiny

from pagefall.cache.namespace import Namespace
from pagefall.config import CacheConfig, Dtype, ModelConfig
from pagefall.model.spec import inspect
from pagefall.namespaces import namespace_of


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEFALL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def of(folder: Path, *, page_size: int = 16, dtype: Dtype = "auto") -> Namespace:
    spec = inspect(ModelConfig(model_path=str(folder), served_model_name="same", device="cpu", dtype=dtype))
    return namespace_of(spec, CacheConfig(page_size=page_size))


def test_the_same_name_with_other_weights_shares_nothing(tmp_path: Path) -> None:
    one, other = (make_tiny("llama", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    assert of(one).differences(of(other)) == ("model_digest",)
    assert of(one).digest() != of(other).digest()


def test_other_page_sizes_and_dtypes_share_nothing(tmp_path: Path) -> None:
    folder = make_tiny("llama", tmp_path / "model")
    base = of(folder)
    assert base == of(folder)
    assert base.differences(of(folder, page_size=32)) == ("page_size",)
    assert base.differences(of(folder, dtype="bfloat16")) == ("compute_dtype", "kv_dtype")


def test_digests_are_kept_in_the_cache_folder(tmp_path: Path, cache_folder: Path) -> None:
    of(make_tiny("llama", tmp_path / "model"))
    assert len(list((cache_folder / "digests").iterdir())) == 1
