"""How many pages fit, and what a person is told when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.errors import ConfigError, ModelError
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.model.location import ModelLocation
from pagefall.model.memory import check_weights_fit, free_host_memory, free_memory, size_kv_pool
from pagefall.model.spec import ModelSpec

LAYERS = (LayerShape(2, 16, 8), LayerShape(4, 8, 8))
BYTES_PER_TOKEN = 2 * (2 * 24 + 4 * 16)
SCHEDULER = SchedulerConfig(max_running_requests=4)
NO_TIERS = TierConfig()


def spec(*, context_length: int = 1000, weights_bytes: int = 0, device: str = "cpu") -> ModelSpec:
    return ModelSpec(
        location=ModelLocation(path="/models/tiny"),
        served_name="tiny",
        architecture="TinyForCausalLM",
        model_type="tiny",
        layers=LAYERS,
        sliding_window=(None, None),
        num_attention_heads=4,
        vocab_size=100,
        context_length=context_length,
        eos_token_ids=frozenset(),
        weights_bytes=weights_bytes,
        dtype=torch.bfloat16,
        device=torch.device(device),
    )


def test_a_tokens_bytes_are_those_the_pool_allocates() -> None:
    pool = KVPool(LAYERS, num_pages=3, page_size=16, dtype=torch.bfloat16, device=torch.device("cpu"))
    size = size_kv_pool(
        spec(),
        CacheConfig(max_total_tokens=48),
        SCHEDULER,
        NO_TIERS,
        kv_itemsize=torch.bfloat16.itemsize,
        free_bytes=2**30,
    )
    assert (size.num_pages, size.num_tokens, size.num_bytes) == (3, 48, pool.num_bytes)
    assert size.num_bytes == 48 * BYTES_PER_TOKEN


def test_max_total_tokens_is_rounded_down_to_pages_and_limits_the_context() -> None:
    size = size_kv_pool(spec(), CacheConfig(max_total_tokens=500), SCHEDULER, NO_TIERS, kv_itemsize=2, free_bytes=2**30)
    assert (size.num_pages, size.num_tokens, size.context_length) == (31, 496, 496)
    size = size_kv_pool(
        spec(), CacheConfig(max_total_tokens=5000), SCHEDULER, NO_TIERS, kv_itemsize=2, free_bytes=2**30
    )
    assert (size.num_tokens, size.context_length) == (4992, 1000)


def test_max_total_tokens_below_a_page_or_beyond_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="--max-total-tokens 15 is less than one page"):
        size_kv_pool(spec(), CacheConfig(max_total_tokens=15), SCHEDULER, NO_TIERS, kv_itemsize=2, free_bytes=2**30)
    with pytest.raises(ConfigError, match=r"pass at most 1600\."):
        size_kv_pool(
            spec(),
            CacheConfig(max_total_tokens=10_000),
            SCHEDULER,
            NO_TIERS,
            kv_itemsize=2,
            free_bytes=1610 * BYTES_PER_TOKEN,
        )


@pytest.mark.parametrize(("device", "fraction", "share"), [("cpu", None, 0.3), ("cuda", None, 0.88), ("cpu", 0.5, 0.5)])
def test_the_pool_takes_its_fraction_of_what_is_free(device: str, fraction: float | None, share: float) -> None:
    size = size_kv_pool(
        spec(device=device),
        CacheConfig(page_size=1, mem_fraction_static=fraction),
        SCHEDULER,
        NO_TIERS,
        kv_itemsize=2,
        free_bytes=1000 * BYTES_PER_TOKEN,
    )
    assert size.num_tokens == pytest.approx(1000 * share, abs=1)


def test_the_pool_is_no_larger_than_every_running_request_at_full_length() -> None:
    size = size_kv_pool(spec(), CacheConfig(), SCHEDULER, NO_TIERS, kv_itemsize=2, free_bytes=2**40)
    assert size.num_pages == 4 * 63  # 1,000 tokens need 63 pages of 16


def test_a_pool_of_no_page_is_refused_with_the_numbers() -> None:
    with pytest.raises(ModelError, match=r"30% of the 0\.00 GiB free on cpu"):
        size_kv_pool(spec(), CacheConfig(), SCHEDULER, NO_TIERS, kv_itemsize=2, free_bytes=16 * BYTES_PER_TOKEN)


@pytest.mark.parametrize(
    ("tiers", "device", "num_tokens"),
    [
        (TierConfig(enable_hierarchical_cache=True, hicache_ratio=4.0), "cpu", 1000),
        (TierConfig(enable_hierarchical_cache=True, hicache_ratio=4.0), "mps", 1000),
        (TierConfig(enable_hierarchical_cache=True, hicache_ratio=4.0), "cuda", 5000),
        (TierConfig(enable_hierarchical_cache=True, hicache_size=2000 * BYTES_PER_TOKEN / 1e9), "cpu", 3000),
        (TierConfig(enable_hierarchical_cache=True, hicache_size=2000 * BYTES_PER_TOKEN / 1e9), "cuda", 5000),
        (TierConfig(hicache_ratio=4.0), "cpu", 5000),
    ],
)
def test_where_memory_is_shared_the_host_pool_comes_out_of_the_fraction(
    tiers: TierConfig, device: str, num_tokens: int
) -> None:
    size = size_kv_pool(
        spec(device=device, context_length=2000),
        CacheConfig(page_size=1, mem_fraction_static=0.5),
        SCHEDULER,
        tiers,
        kv_itemsize=2,
        free_bytes=10_000 * BYTES_PER_TOKEN,
    )
    assert size.num_tokens == pytest.approx(num_tokens, abs=1)


def test_with_max_total_tokens_the_host_pool_takes_nothing_from_the_device_pool() -> None:
    tiers = TierConfig(enable_hierarchical_cache=True)
    size = size_kv_pool(spec(), CacheConfig(max_total_tokens=480), SCHEDULER, tiers, kv_itemsize=2, free_bytes=2**20)
    assert size.num_tokens == 480


@pytest.mark.parametrize(
    ("tiers", "flag"),
    [
        (TierConfig(enable_hierarchical_cache=True, hicache_size=0.5), "--hicache-size 0.5"),
        (TierConfig(enable_hierarchical_cache=True, hicache_ratio=1e9), r"--hicache-ratio 1e\+09"),
    ],
)
def test_a_host_pool_that_leaves_the_device_no_page_is_refused_with_the_fix(tiers: TierConfig, flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag} leaves no page .* 0\.30 GiB, 30% of the 1\.00 GiB free on cpu"):
        size_kv_pool(spec(), CacheConfig(), SCHEDULER, tiers, kv_itemsize=2, free_bytes=2**30)


def test_weights_that_do_not_fit_are_refused_with_the_numbers() -> None:
    check_weights_fit(spec(weights_bytes=2**30), 2**30)
    with pytest.raises(ModelError, match=r"needs 3\.00 GiB for its weights in bfloat16 and 1\.00 GiB are free on cpu"):
        check_weights_fit(spec(weights_bytes=3 * 2**30), 2**30)


def test_this_machine_has_some_memory_free() -> None:
    assert free_memory(torch.device("cpu")) > 2**20


def proc(folder: Path, cgroup: str) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:  8000 kB\nHugePages_Total:  0\n")
    (folder / "self/cgroup").write_text(cgroup)
    return folder


def test_a_cgroup_v2_limit_counts_wherever_it_stands_above_the_process(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/pod"
    (group / "container").mkdir(parents=True)
    (group / "container/memory.max").write_text("max\n")
    (group / "container/memory.current").write_text("1024\n")
    (group / "container/memory.stat").write_text("anon 1\n")
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2500000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    files = proc(tmp_path / "proc", "0::/pod/container\n")
    assert free_host_memory(files, tmp_path / "cgroup") == 1_500_000


def test_a_cgroup_v1_limit_counts(tmp_path: Path) -> None:
    group = tmp_path / "cgroup/memory/pod"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("3000000\n")
    (group / "memory.usage_in_bytes").write_text("3500000\n")
    (group / "memory.stat").write_text("total_inactive_file 600000\n")
    files = proc(tmp_path / "proc", "9:cpu,cpuacct:/pod\n4:memory:/pod\n0::/\n")
    assert free_host_memory(files, tmp_path / "cgroup") == 100_000


def test_without_limits_the_kernels_estimate_counts(tmp_path: Path) -> None:
    assert free_host_memory(proc(tmp_path / "proc", "0::/\n"), tmp_path / "cgroup") == 8000 * 1024
