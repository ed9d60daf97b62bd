from __future__ import annotations

import pytest

from pagefall.bench.demo_plan import DemoConfig
from pagefall.cli.demo import parse_demo
from pagefall.cli.main import main

COMMANDS = (
    "demo",
    "bench engine",
    "bench multi-turn",
    "bench shared-prefix",
    "bench storage-hit",
    "bench control-plane",
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


def test_the_demos_flags_reach_its_configuration() -> None:
    argv = ["--out", "slides", "--prompt-tokens", "2000", "--hicache-ratio", "3"]
    assert parse_demo(argv, {}) == DemoConfig(out="slides", prompt_tokens=2_000, hicache_ratio=3.0)


def test_a_demo_that_cannot_show_the_tiers_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--prompt-tokens", "9000"]) == 2
    assert "--max-total-tokens: 6144 have no room for a prompt of 9000" in capsys.readouterr().err
