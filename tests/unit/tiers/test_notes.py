from __future__ import annotations

from pagefall.config import TierConfig
from pagefall.tiers.notes import start_notes


def test_nothing_is_said_where_every_setting_has_its_effect() -> None:
    assert start_notes(TierConfig(enable_hierarchical_cache=True), "cuda") == ()
    assert start_notes(TierConfig(), "cpu") == ()


def test_a_way_of_copying_means_nothing_without_a_gpu() -> None:
    config = TierConfig(enable_hierarchical_cache=True, hicache_io_backend="direct")
    [note] = start_notes(config, "cpu")
    assert note == "--hicache-io-backend direct has no meaning on cpu: the CPU copies pages"
    assert start_notes(TierConfig(enable_hierarchical_cache=True), "cpu") == (), "nobody has asked for it"
    [note] = start_notes(config, "cuda")
    assert note.startswith("--hicache-io-backend direct is taken as kernel")


def test_another_layout_than_page_first_is_said_to_change_nothing() -> None:
    config = TierConfig(enable_hierarchical_cache=True, hicache_mem_layout="layer_first")
    [note] = start_notes(config, "cuda")
    assert note == "--hicache-mem-layout layer_first changes nothing: host pages are page_first"


def test_a_size_is_said_to_win_over_a_ratio() -> None:
    config = TierConfig(enable_hierarchical_cache=True, hicache_size=50.0, hicache_ratio=4.0)
    [note] = start_notes(config, "cuda")
    assert note == "--hicache-ratio 4 is not used: --hicache-size 50 wins"
