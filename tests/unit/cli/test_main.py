from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version

import pytest

from pagefall.cli.main import main


def test_help_is_printed_without_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == text
    assert "serve" in text
    assert "bench control-plane" in text


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagefall {version('pagefall')}\n"


def test_a_configuration_error_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--prot", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "pagefall: error: --prot: unknown; did you mean --port?\n"
    assert captured.out == ""


@pytest.mark.parametrize(("command", "words"), [("serv", "did you mean serve?"), ("x", "see --help")])
def test_an_unknown_command_names_the_nearest(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 2
    assert words in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    script = "import sys; from pagefall.__main__ import main; main(['--help']); print(*sys.modules)"
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert time.perf_counter() - started < 5, "an import got very slow"
    imported = set(done.stdout.split())
    assert not imported & {"torch", "transformers", "numpy", "starlette", "httpx", "argparse", "asyncio"}
