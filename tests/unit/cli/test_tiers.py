"""The flags of the tiers: what each becomes, and what makes no sense together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagefall.cli.serve import parse_serve
from pagefall.config import TierConfig
from pagefall.errors import ConfigError

ON = "--enable-hierarchical-cache"
EXTRA = "--hicache-storage-backend-extra-config"


def parse(*argv: str) -> TierConfig:
    return parse_serve(argv, {}).tiers


def complaint(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_flag_reaches_its_field() -> None:
    config = parse(
        *(ON, "--hicache-ratio", "1.5", "--hicache-size", "8", "--hicache-io-backend", "direct"),
        *("--hicache-mem-layout", "layer_first", "--hicache-write-policy", "write_through_selective"),
        *("--hicache-selective-hits", "3", "--hicache-storage-backend", "file", EXTRA, '{"path": "x"}'),
        *("--hicache-storage-prefetch-policy", "timeout", "--hicache-prefetch-threshold", "512"),
        *("--hicache-prefetch-timeout-base", "0.5", "--hicache-prefetch-timeout-per-ki-token", "0"),
        *("--hicache-storage-deadline", "2", "--hicache-storage-required"),
    )
    assert config == TierConfig(
        enable_hierarchical_cache=True,
        hicache_ratio=1.5,
        hicache_size=8.0,
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
        hicache_write_policy="write_through_selective",
        hicache_selective_hits=3,
        hicache_storage_backend="file",
        hicache_storage_backend_extra_config='{"path":"x"}',
        hicache_storage_prefetch_policy="timeout",
        hicache_prefetch_threshold=512,
        hicache_prefetch_timeout_base=0.5,
        hicache_prefetch_timeout_per_ki_token=0.0,
        hicache_storage_deadline=2.0,
        hicache_storage_required=True,
    )


def test_the_tier_commands_of_sglang_users_parse() -> None:
    host = (
        f"--context-length 8192 --max-running-requests 1 {ON} --hicache-ratio 2 --hicache-io-backend kernel "
        "--hicache-mem-layout page_first"
    )
    assert parse(*host.split()) == TierConfig(enable_hierarchical_cache=True)
    assert parse(*host.split(), "--hicache-storage-backend", "file").hicache_storage_backend == "file"
    both = f"--enable-metrics {ON} --hicache-ratio 4.0 --mem-fraction-static 0.80"
    assert parse(*both.split()).hicache_ratio == 4.0


def test_a_size_of_0_is_sglangs_way_to_say_that_the_ratio_counts() -> None:
    assert parse(ON, "--hicache-ratio", "2", "--hicache-size", "0") == TierConfig(enable_hierarchical_cache=True)
    both = parse(ON, "--hicache-ratio", "3", "--hicache-size", "50")
    assert (both.hicache_ratio, both.hicache_size) == (3.0, 50.0)  # the host pool's size says which wins


def test_extra_config_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    path.write_text('{"path": "/x", "max_bytes": "20GB"}')
    config = parse(ON, "--hicache-storage-backend", "file", EXTRA, f"@{path}")
    assert config.hicache_storage_backend_extra_config is not None
    assert json.loads(config.hicache_storage_backend_extra_config) == {"path": "/x", "max_bytes": "20GB"}


def test_sglangs_prefetch_settings_inside_extra_config_set_the_flags() -> None:
    text = '{"path": "x", "prefetch_threshold": 512, "prefetch_timeout_base": 2, "prefetch_timeout_per_ki_token": 0.5}'
    config = parse(ON, "--hicache-storage-backend", "file", EXTRA, text)
    assert config.hicache_prefetch_threshold == 512
    assert config.hicache_prefetch_timeout_base == 2.0
    assert config.hicache_prefetch_timeout_per_ki_token == 0.5
    assert config.hicache_storage_backend_extra_config == '{"path":"x"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", f"{EXTRA}: not valid JSON"),
        ("/some/folder", f"{EXTRA}: not valid JSON"),
        ('["path"]', f'{EXTRA}: JSON, but not an object; give one such as \'{{"path": "/some/folder"}}\''),
        ("@/nowhere/at/all", f"{EXTRA} @/nowhere/at/all: no such file or directory"),
        ('{"prefetch_threshold": "many"}', f"prefetch_threshold in {EXTRA}: 'many' is not a whole number"),
        ('{"prefetch_threshold": 0}', f"prefetch_threshold in {EXTRA}: 0 is too small; use 1 or more"),
    ],
)
def test_extra_config_that_cannot_be_used_names_the_flag(text: str, words: str) -> None:
    assert words in complaint(ON, "--hicache-storage-backend", "file", EXTRA, text)


def test_extra_config_and_a_flag_may_not_set_the_same() -> None:
    argv = (ON, "--hicache-storage-backend", "file", "--hicache-prefetch-threshold", "1")
    words = f"prefetch_threshold in {EXTRA}: --hicache-prefetch-threshold sets it too; keep one"
    assert words in complaint(*argv, EXTRA, '{"prefetch_threshold": 2}')


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--hicache-ratio", "2"], "--hicache-ratio: needs --enable-hierarchical-cache"),
        (["--hicache-storage-backend", "file"], "--hicache-storage-backend: needs --enable-hierarchical-cache"),
        (
            [ON, "--disable-radix-cache"],
            "--enable-hierarchical-cache contradicts --disable-radix-cache: the tiers hold what the radix cache knows",
        ),
        ([ON, EXTRA, "{}"], f"{EXTRA}: needs --hicache-storage-backend"),
        ([ON, "--hicache-storage-required"], "--hicache-storage-required: needs --hicache-storage-backend"),
        (
            [ON, "--hicache-selective-hits", "3"],
            "--hicache-selective-hits: needs --hicache-write-policy write_through_selective",
        ),
        ([ON, "--hicache-storage-backend", "fil"], "'fil' is not one of file, memory"),
        ([ON, "--hicache-storage-backend", "fil"], "did you mean file?"),
        ([ON, "--hicache-storage-backend", "mooncake"], "a plug-in's name is known once it is installed"),
        ([ON, "--hicache-ratio", "0"], "--hicache-ratio: 0.0 is too small; use more than 0"),
        ([ON, "--hicache-mem-layout", "page_head"], "'page_head' is not one of page_first"),
        ([ON, "--hicache-storage-deadline", "0"], "--hicache-storage-deadline: 0.0 is too small"),
    ],
)
def test_a_flag_without_effect_or_meaning_names_the_fix(argv: list[str], words: str) -> None:
    assert words in complaint(*argv)


def test_a_store_that_is_attached_later_has_its_policies_from_the_start() -> None:
    config = parse(ON, "--hicache-storage-prefetch-policy", "timeout", "--hicache-storage-deadline", "1")
    assert (config.hicache_storage_prefetch_policy, config.hicache_storage_deadline) == ("timeout", 1.0)


def test_the_file_has_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "pagefall.toml"
    path.write_text("[tiers]\nenable-hierarchical-cache = true\nhicache-size = 4")
    assert parse("--config", str(path)) == TierConfig(enable_hierarchical_cache=True, hicache_size=4.0)
    path.write_text("[tiers]\nenable-hierarchical-cache = false\nhicache-size = 4")
    assert complaint("--config", str(path)) == f"hicache-size in {path}: needs --enable-hierarchical-cache"
