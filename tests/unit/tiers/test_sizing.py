from __future__ import annotations

import re

import pytest

from pagefall.config import TierConfig
from pagefall.errors import ConfigError
from pagefall.tiers.host_memory import slot_bytes
from pagefall.tiers.sizing import num_host_pages, refuse_impossible_size

PAGE = 10_000
SLOT = slot_bytes(PAGE)
GB = 10**9


def pages(*, ratio: float = 2.0, size: float | None = None, num_device_pages: int = 100, free: int = 64 * GB) -> int:
    tiers = TierConfig(enable_hierarchical_cache=True, hicache_ratio=ratio, hicache_size=size)
    return num_host_pages(tiers, page_bytes=PAGE, num_device_pages=num_device_pages, free_bytes=free)


def test_the_ratio_multiplies_the_device_pool() -> None:
    assert pages(ratio=2.5) == 250


def test_the_size_is_in_units_of_ten_to_the_ninth_bytes_and_wins() -> None:
    assert pages(ratio=2.5, size=3.0) == 3 * GB // SLOT


@pytest.mark.parametrize("free", [2 * GB, 40 * GB])
def test_a_twentieth_of_the_free_memory_or_512_mib_stay_free(free: int) -> None:
    most = (free - max(512 * 2**20, free // 20)) // SLOT
    assert pages(ratio=1.0, num_device_pages=most, free=free) == most
    with pytest.raises(ConfigError):
        pages(ratio=1.0, num_device_pages=most + 1, free=free)


@pytest.mark.parametrize(("size", "flag"), [(50.0, "--hicache-size 50"), (None, "--hicache-ratio 50")])
def test_a_pool_beyond_the_free_memory_is_refused_and_the_fix_works(size: float | None, flag: str) -> None:
    one_gb = GB // SLOT
    with pytest.raises(
        ConfigError, match=rf"^{flag} is a host pool of (50|49\.99|50\.00) GB, and of the 20\.00"
    ) as told:
        pages(size=size, ratio=50.0, num_device_pages=one_gb, free=20 * GB)
    fix = re.search(r"pass at most ([\d.]+), or leave out --enable-hierarchical-cache", str(told.value))
    assert fix is not None
    most = float(fix[1])
    assert most == pytest.approx(19.0, abs=0.01)
    assert pages(size=None if size is None else most, ratio=most, num_device_pages=one_gb, free=20 * GB) > 0


@pytest.mark.parametrize(("size", "ratio"), [(1e-6, 2.0), (None, 0.001)])
def test_a_pool_of_no_page_is_refused_and_the_fix_works(size: float | None, ratio: float) -> None:
    with pytest.raises(ConfigError, match="holds no page of") as told:
        pages(size=size, ratio=ratio)
    fix = re.search(r"pass at least (\S+), or", str(told.value))
    assert fix is not None
    assert pages(size=None if size is None else float(fix[1]), ratio=float(fix[1])) >= 1


def test_a_size_above_all_free_memory_is_refused_without_knowing_the_model() -> None:
    tiers = TierConfig(enable_hierarchical_cache=True, hicache_size=500.0)
    with pytest.raises(ConfigError, match=r"--hicache-size 500 is a host pool of 500\.00 GB, and 64\.00 GB"):
        refuse_impossible_size(tiers, free_bytes=64 * GB)
    refuse_impossible_size(tiers, free_bytes=500 * GB)
