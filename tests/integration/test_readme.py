"""What the README tells people to type works: each command is run here, or the part of it that a test can run."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.filled_store import NAMESPACE, fill
from tests.real_server import real_server

from pagefall.cli.config_file import read_config_file
from pagefall.cli.main import main
from pagefall.cli.router import parse_router
from pagefall.cli.serve import parse_serve
from pagefall.cli.serve_flags import SERVE_FLAGS
from pagefall_storage.registry import open_backend

REPOSITORY = Path(__file__).parents[2]
README_URL = "http://127.0.0.1:30000"
README_STORE = "/mnt/nvme/pagefall"


def code_blocks(language: str) -> list[str]:
    text = (REPOSITORY / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command of the README's bash blocks. One ends with its line, unless a quote or a backslash goes on."""
    found: list[str] = []
    for block in code_blocks("bash"):
        pending = ""
        for line in block.splitlines(keepends=True):
            pending += line
            if pending.endswith("\\\n"):
                continue
            try:
                shlex.split(pending)
            except ValueError:
                continue
            found.append(pending.replace("\\\n", "").strip())
            pending = ""
        assert not pending, f"unfinished command: {pending}"
    return found


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with real_server(tmp_path_factory.mktemp("server"), "--max-total-tokens", "16384") as server:
        yield server.url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pages in it."""
    folder = tmp_path_factory.mktemp("store")

    async def leave_pages() -> None:
        backend = await open_backend("file", {"path": str(folder), "min_free_bytes": 0}, value_bytes=None)
        await fill(backend, NAMESPACE, 3)
        await backend.aclose()

    asyncio.run(leave_pages())
    return folder


def run_make(words: list[str], _: str) -> None:
    subprocess.run(["make", "-n", *words], cwd=REPOSITORY, check=True, capture_output=True, timeout=60)


def run_curl(words: list[str], server_url: str) -> None:
    """The request that curl would send. An option that is not read here fails the test."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-X", default=None)
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", default=None)
    options = parser.parse_args(words)
    response = httpx.request(
        options.X or ("POST" if options.d else "GET"),
        options.url.replace(README_URL, server_url),
        headers=dict(header.split(": ", 1) for header in options.H),
        content=options.d,
        timeout=60,
    )
    assert response.is_success, response.text


def run_serve(words: list[str], _: str) -> None:
    if words == ["--help"]:
        with pytest.raises(SystemExit, match="0"):
            main(["serve", "--help"])
    else:
        parse_serve(words, {})


def run_router(words: list[str], _: str) -> None:
    parse_router(words, {})


def run_compose(words: list[str], _: str) -> None:
    """docker/verify.py runs it with a real engine; that the file is sound is tests/unit/deployment's."""
    assert words == ["compose", "up"]
    assert (REPOSITORY / "compose.yaml").is_file()


def run_explain(words: list[str], server_url: str) -> None:
    assert main(["explain", *words, "--url", server_url]) == 0


def run_doctor(words: list[str], server_url: str) -> None:
    assert main(["doctor", *words, "--url", server_url]) == 0


def run_bench_load(words: list[str], server_url: str) -> None:
    quick = ["--scale", "0.02", "--num-requests", "4", "--output-tokens", "2"]
    assert main(["bench", "load", *words, *quick, "--url", server_url]) == 0


def run_cache(words: list[str], store: str) -> None:
    assert main(["cache", *(word.replace(README_STORE, store) for word in words)]) == 0


def run_backends(words: list[str], _: str) -> None:
    assert main(["backends", *words]) == 0


def run_bench_engine(words: list[str], server_url: str) -> None:
    quick = ["--repeats", "1", "--scenarios", "ttft", "--prompt-tokens", "64"]
    assert main(["bench", "engine", *words, *quick, "--url", server_url]) == 0


def run_bench_control_plane(words: list[str], _: str) -> None:
    quick = ["--repeats", "1", "--cached-tokens", "1000", "--prompt-tokens", "500", "--running", "1"]
    assert main(["bench", "control-plane", *words, *quick]) == 0


def run_pip_install(words: list[str], _: str) -> None:
    """Covered by tests/integration/test_install.py, which installs the folder into an empty place."""
    assert words == ["."]


Runner = Callable[[list[str], str], None]

RUNNERS: dict[str, Runner] = {
    "make": run_make,
    "pip install": run_pip_install,
    "docker": run_compose,
    ".venv/bin/pagefall serve": run_serve,
    ".venv/bin/pagefall router": run_router,
    ".venv/bin/pagefall backends": run_backends,
    ".venv/bin/pagefall bench control-plane": run_bench_control_plane,
}
RUNNERS_WITH_STORE: dict[str, Runner] = {".venv/bin/pagefall cache": run_cache}
RUNNERS_WITH_SERVER: dict[str, Runner] = {
    "curl": run_curl,
    ".venv/bin/pagefall explain": run_explain,
    ".venv/bin/pagefall doctor": run_doctor,
    ".venv/bin/pagefall bench load": run_bench_load,
    ".venv/bin/pagefall bench engine": run_bench_engine,
}


def commands_for(runners: dict[str, Runner]) -> list[tuple[Runner, list[str]]]:
    """The README's commands that start with the words of one of `runners`: that one, and the words after them."""
    found = []
    for words in map(shlex.split, commands()):
        for start, runner in runners.items():
            prefix = start.split()
            if words[: len(prefix)] == prefix:
                found.append((runner, words[len(prefix) :]))
    return found


def test_no_command_of_the_readme_goes_unchecked() -> None:
    assert len(commands()) >= 10
    assert len(commands_for(RUNNERS | RUNNERS_WITH_STORE | RUNNERS_WITH_SERVER)) == len(commands())


@pytest.mark.parametrize(("runner", "words"), commands_for(RUNNERS))
def test_a_command_that_needs_no_server_works(runner: Runner, words: list[str]) -> None:
    runner(words, "")


@pytest.mark.parametrize(("runner", "words"), commands_for(RUNNERS_WITH_STORE))
def test_a_command_for_a_store_works(runner: Runner, words: list[str], store: Path) -> None:
    runner(words, str(store))


@pytest.mark.parametrize(("runner", "words"), commands_for(RUNNERS_WITH_SERVER))
def test_a_command_for_a_running_server_works(runner: Runner, words: list[str], server_url: str) -> None:
    runner(words, server_url)


@pytest.mark.parametrize("code", code_blocks("python"))
def test_the_python_example_prints_an_answer(code: str, server_url: str) -> None:
    example = [sys.executable, "-c", code.replace(README_URL, server_url)]
    done = subprocess.run(example, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip()


@pytest.mark.parametrize("text", code_blocks("toml"))
def test_the_configuration_file_is_valid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pagefall.toml"
    path.write_text(text)
    assert read_config_file(SERVE_FLAGS, path)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (REPOSITORY / "README.md").read_text())
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
