from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagefall.bench.engine import EngineBenchConfig, run_engine_bench
from pagefall.cli.bench import parse_engine
from pagefall.errors import ConfigError

from .conftest import FakeServer, Serve

pytestmark = pytest.mark.anyio


async def test_the_report_compares_every_scenario_with_the_peer(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    async with serve(FakeServer(wait=0.001)) as http, serve(FakeServer(context_length=2000)) as peer_http:
        config = EngineBenchConfig(
            url=f"{http.base_url}",
            peer_url=f"{peer_http.base_url}/v1",
            api_key="secret",
            repeats=2,
            settle_seconds=0.0,
            prompt_tokens=(100, 4000),
            concurrency=2,
            output_tokens=4,
            seed=7,
            json=str(path),
        )
        await run_engine_bench(config)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("self: fake-model at http://127.0.0.1:")
    assert lines[2] == "2 repeats, seed 7"
    names = [figure["name"] for figure in json.loads(path.read_text())["figures"]]
    assert [line[: len(name)] for line, name in zip(lines[5:], names, strict=False)] == names
    assert names[:3] == ["cold TTFT, 100 tokens", "warm TTFT, 100 tokens", "cold TTFT, 4,000 tokens"]
    assert names[-2:] == ["worst gap beside 6,000 tokens", "TTFT of the 6,000 tokens"]
    assert sum("longer than the context" in line for line in lines) == 1, "a note stands once, not at every row"
    assert "secret" not in path.read_text()


def test_flags_reach_the_configuration() -> None:
    config = parse_engine(["--prompt-tokens", "512, 1024", "--scenarios=itl,ttft", "--peer-url", "http://p"], {})
    assert config == EngineBenchConfig(prompt_tokens=(512, 1024), scenarios=("itl", "ttft"), peer_url="http://p")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--scenarios", "ttft,speed"], "--scenarios: 'speed' is not one of ttft, itl, throughput, interference"),
        (["--prompt-tokens", "512,x"], "--prompt-tokens: 'x' is not a whole number"),
        (["--peer-model", "m"], "--peer-model: needs --peer-url"),
        (["--repeat", "3"], "--repeat: unknown; did you mean --repeats?"),
    ],
)
def test_a_mistake_is_a_configuration_error(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_engine(argv, {})
    assert str(caught.value).startswith(words)
