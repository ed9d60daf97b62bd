from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagefall.bench.demo_plan import DemoConfig
from pagefall.bench.storage_hit import StorageHitConfig
from pagefall.bench.store_transfers import TransfersBenchConfig
from pagefall.cli.bench import parse_storage_hit
from pagefall.cli.demo import parse_demo
from pagefall.cli.main import main
from pagefall.cli.transfers import parse_transfers

COMMANDS = (
    "demo",
    "bench load",
    "bench engine",
    "bench multi-turn",
    "bench shared-prefix",
    "bench storage-hit",
    "bench control-plane",
    "bench router",
    "bench transfers",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_flags_and_stands_in_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*command.split(), "--help"])
    assert f"usage: pagefall {command} [flags]" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert f"  {command} " in capsys.readouterr().out


def test_an_unknown_benchmark_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "multiturn"]) == 2
    assert "did you mean multi-turn?" in capsys.readouterr().err


def test_a_benchmarks_store_is_known_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("storage-hit", "transfers"):
        assert main(["bench", command, "--backend", "radis"]) == 2
        assert "--backend: 'radis' is not one of" in capsys.readouterr().err
        assert main(["bench", command, "--extra-config", "{"]) == 2
        assert "--extra-config: not valid JSON" in capsys.readouterr().err


def test_a_benchmarks_store_may_have_its_settings_in_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "store.json"
    settings.write_text('{"url": "redis://127.0.0.1"}')
    argv = ["--backend", "redis", "--extra-config", f"@{settings}"]
    expected: dict[str, Any] = {"backend": "redis", "extra_config": '{"url":"redis://127.0.0.1"}'}
    assert parse_storage_hit(argv, {}) == StorageHitConfig(**expected)
    assert parse_transfers(argv, {}) == TransfersBenchConfig(**expected)


def test_the_demos_flags_reach_its_configuration() -> None:
    argv = ["--out", "slides", "--prompt-tokens", "2000", "--hicache-ratio", "3"]
    assert parse_demo(argv, {}) == DemoConfig(out="slides", prompt_tokens=2_000, hicache_ratio=3.0)


def test_a_demo_that_cannot_show_the_tiers_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--prompt-tokens", "9000"]) == 2
    assert "--max-total-tokens: 6144 have no room for a prompt of 9000" in capsys.readouterr().err
