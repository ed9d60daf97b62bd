"""What the pages of the API tell people to type works, on a server whose engine has a script."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import anyio.to_thread
import httpx
import msgspec
import openai
import pytest
from tests.unit.api.fake_engine import FakeEngine, listening

from pagefall.cli.serve import parse_serve

pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
PAGES = "\n".join((DOCS / name).read_text() for name in ("api.md", "api-responses.md", "api-messages.md"))
URL = "http://127.0.0.1:30000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    joined = "".join(blocks("bash")).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(engine.model, id="SmolLM2-135M-Instruct", vocab_size=49_152)
    return engine


def curl(words: list[str], url: str) -> httpx.Response:
    """The request that curl would send. An option that is not read here fails the test."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("url")
    parser.add_argument("-X")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    options = parser.parse_args(words)
    return httpx.request(
        options.X or ("POST" if options.d else "GET"),
        options.url.replace(URL, url),
        headers=dict(header.split(": ", 1) for header in options.H),
        content=options.d,
    )


async def test_every_command_works() -> None:
    assert len(commands()) > 10
    async with listening(engine()) as (host, port):
        for command in commands():
            program, *words = shlex.split(command)
            if program == "pagefall":
                assert words.pop(0) == "serve"
                parse_serve(words, {})
            else:
                assert program == "curl"
                response = await anyio.to_thread.run_sync(partial(curl, words, f"http://{host}:{port}"))
                assert response.is_success, f"{command}: {response.text}"


def run(block: str) -> None:
    """Closes the clients that it leaves, which may otherwise be collected in any order."""
    names: dict[str, Any] = {}
    exec(block, names)
    for value in names.values():
        if isinstance(value, openai.OpenAI | anthropic.Anthropic):
            value.close()


@pytest.mark.parametrize("block", blocks("python"))
async def test_every_piece_of_python_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with listening(engine()) as (host, port):
        await anyio.to_thread.run_sync(run, block.replace(URL, f"http://{host}:{port}"))
    assert capsys.readouterr().out
