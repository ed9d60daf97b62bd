from __future__ import annotations

from pathlib import Path

import pytest

from pagefall.bench.report import Figure
from pagefall.bench.storage_hit import (
    Measured,
    Read,
    Reads,
    StorageHitConfig,
    host_figures,
    plain_flags,
    storage_figures,
    store_settings,
    throttle_setting,
    tier_flags,
)
from pagefall.errors import ConfigError


def read(ttft_ms: float, *gaps_ms: float, storage: int = 0, host: int = 0) -> Read:
    by_tier = {"storage": storage, "host": host}
    return Read(ttft_ms=ttft_ms, by_tier=by_tier, gaps_before_ms=(10.0,), gaps_beside_ms=gaps_ms)  # type: ignore[arg-type]


def values(figures: list[Figure]) -> dict[str, dict[str, float | None]]:
    return {figure.row.name: {target: figure.value(target) for target in figure.samples} for figure in figures}


def test_a_hit_stands_beside_a_cold_start() -> None:
    cold = Reads(alone=(read(5000), read(5200)), beside=(read(6000, 400, 600),))
    hit = Reads(alone=(read(400, storage=4080), read(600, storage=4080)), beside=(read(700, 12, 18, storage=4080),))
    found = values(storage_figures(Measured(cold=cold, storage=hit)))
    assert found == {
        "TTFT alone, median": {"storage": 500, "cold": 5100},
        "TTFT alone, worst": {"storage": 600, "cold": 5200},
        "TTFT beside a stream, median": {"storage": 700, "cold": 6000},
        "the stream's ITL meanwhile, mean": {"storage": 15, "cold": 500},
        "the stream's ITL before, mean": {"storage": 10, "cold": 10},
        "from the store, mean": {"storage": 4080, "cold": 0},
    }


def test_a_case_that_was_not_measured_has_no_figures() -> None:
    assert storage_figures(Measured(host=(read(1),), device=(read(1),))) == []
    assert host_figures(Measured()) == []


def test_host_stands_beside_device() -> None:
    found = values(host_figures(Measured(host=(read(120, host=4080),), device=(read(100),))))
    assert found["TTFT, median"] == {"host": 120, "device": 100}
    assert found["from that tier, mean"] == {"host": 4080, "device": 0}


def test_the_throttle_is_in_the_stores_settings_and_only_when_asked_for(tmp_path: Path) -> None:
    config = StorageHitConfig(bytes_per_second=20e6)
    own = {"path": str(tmp_path / "pages")}
    assert store_settings(config, tmp_path, throttle=throttle_setting(config)) == {
        **own,
        "throttle": {"bytes_per_second": 20e6},
    }
    assert store_settings(config, tmp_path, throttle={}) == own


def test_another_store_has_the_settings_that_were_given_and_nothing_else(tmp_path: Path) -> None:
    given = StorageHitConfig(backend="redis", extra_config='{"url": "redis://127.0.0.1"}')
    assert store_settings(given, tmp_path, throttle={}) == {"url": "redis://127.0.0.1"}
    assert store_settings(StorageHitConfig(backend="mine"), tmp_path, throttle={}) == {}


def test_the_stores_settings_stand_on_no_command_line(tmp_path: Path) -> None:
    config = StorageHitConfig(
        backend="redis",
        extra_config='{"password": "secret"}',
        tier_flags="--hicache-storage-prefetch-policy wait_complete",
    )
    flags = tier_flags(config, tmp_path / "store.json")
    assert flags[flags.index("--hicache-storage-backend") + 1] == "redis"
    assert flags[flags.index("--hicache-storage-backend-extra-config") + 1] == f"@{tmp_path}/store.json"
    assert flags[-2:] == ["--hicache-storage-prefetch-policy", "wait_complete"]
    assert "secret" not in str(flags)


def test_the_cold_server_has_the_same_pool_and_no_tiers(tmp_path: Path) -> None:
    config = StorageHitConfig(serve_flags="--dtype float32")
    assert plain_flags(config) == ["--max-total-tokens", "6144", "--dtype", "float32"]
    assert tier_flags(config, tmp_path)[:4] == plain_flags(config)


def test_flags_that_cannot_be_cut_into_words_are_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="--serve-flags: No closing quotation"):
        plain_flags(StorageHitConfig(serve_flags="'unfinished"))
