from __future__ import annotations

import importlib.util
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pytest
import uvicorn
from tests.unit.bench.conftest import FakeServer

from pagefall.bench.load.command import Measurement, bench_load, measure
from pagefall.bench.load.document import LoadDocument
from pagefall.bench.load.plan import make_plan
from pagefall.cli.bench_load import parse_load
from pagefall.cli.main import main
from pagefall.errors import ConfigError, PagefallError

OUTPUT_TOKENS: Final = 3
TIERS = ["--workload", "tiers", "--document-tokens", "30", "--output-tokens", "2", "--warm-up", "0"]
SMALL = "--groups 2 --prompts-per-group 3 --system-tokens 20 --question-tokens 5 --output-tokens 3 --concurrency 2"


@contextmanager
def running(fake: FakeServer) -> Iterator[str]:
    """The URL of `fake`, which a thread serves."""
    server = uvicorn.Server(uvicorn.Config(fake.app, port=0, log_level="error", lifespan="off", ws="none"))
    ready = threading.Event()

    async def serve() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve)
            while not server.started:
                await anyio.sleep(0.005)
            ready.set()

    thread = threading.Thread(target=partial(anyio.run, serve))
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def load(*argv: str) -> int:
    return bench_load(parse_load(["--workload", "generated-shared-prefix", *SMALL.split(), *argv], {}))


def words_of(bodies: list[dict[str, Any]]) -> list[str]:
    """The prompts of measured requests, sorted: of two at a time, either may come first."""
    return sorted(body["prompt"] for body in bodies if body["max_tokens"] == OUTPUT_TOKENS)


def test_one_server_is_measured_and_everything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, png = tmp_path / "load.json", tmp_path / "load.png"
    fake = FakeServer(cached_tokens=16)
    with running(fake) as url:
        status = load(
            "--url", f"{url}/v1", "--json", str(path), "--png", str(png), "--slo=e2e=60", "--api-key", "secret"
        )
    assert status == 0
    assert len(words_of(fake.bodies)) == 6
    out = capsys.readouterr().out
    assert f"self: fake-model at {url}" in out
    assert "6 answered, 0 failed" in out
    # 25 words a prompt, 16 of which the server says to have; two of six have seen nothing.
    assert "hit rate    64.0% of 150 prompt tokens, 53.3% possible" in out
    assert "100.0% of requests kept the SLO" in out
    document = msgspec.json.decode(path.read_bytes(), type=LoadDocument)
    assert (document.schema, document.version, document.is_complete) == ("pagefall-bench-load", 1, True)
    assert len(document.runs[0].samples) == 6
    assert all(len(sample.gaps_seconds) == 2 for sample in document.runs[0].samples)
    summary = document.targets["self"].summary
    assert summary is not None
    assert summary.caching.hit_rate == 0.64
    assert b"secret" not in path.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")


def test_two_servers_get_the_same_prompts_in_turns_and_who_goes_first_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.json"
    fake, peer = FakeServer(cached_tokens=16), FakeServer()
    with running(fake) as url, running(peer) as peer_url:
        status = load(
            *("--url", url, "--peer-url", peer_url, "--rest-seconds", "0"), *("--seed", "5", "--json", str(path))
        )
    assert status == 0
    assert words_of(fake.bodies) == words_of(peer.bodies)
    assert len(set(words_of(fake.bodies))) == 3 * 6, "every repeat has prompts of its own"
    document = msgspec.json.decode(path.read_bytes(), type=LoadDocument)
    assert [(run.target, run.repeat) for run in document.runs] == [
        ("self", 0),
        ("peer", 0),
        ("peer", 1),
        ("self", 1),
        ("self", 2),
        ("peer", 2),
    ]
    ratios = {figure.name: figure for figure in document.comparison}
    ttft = ratios["TTFT p50"]
    assert ttft.ratio is not None
    assert ttft.low is not None
    assert ttft.high is not None
    assert ttft.low <= ttft.ratio <= ttft.high
    assert (ratios["hit rate"].own, ratios["hit rate"].peer) == (0.64, None)
    out = capsys.readouterr().out
    assert "  self/peer  least" in out
    assert "n/a: the server does not say how many tokens were cached" in out


def test_failures_are_counted_and_make_the_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    num_asked = 0

    def refuses(body: dict[str, Any]) -> bool:
        nonlocal num_asked
        is_measured: bool = body["max_tokens"] == OUTPUT_TOKENS
        num_asked += is_measured
        return is_measured and num_asked % 2 == 0

    with running(FakeServer(refuses=refuses, refusal_status=429)) as url:
        assert load("--url", url) == 1
    out = capsys.readouterr().out
    assert "3 answered, 3 failed" in out
    assert "failures    3 status 429: status 429: not that field" in out


def test_ctrl_c_prints_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "load.json"

    def refuses(body: dict[str, Any]) -> bool:
        if (
            body["max_tokens"] == OUTPUT_TOKENS
            and sum(body["max_tokens"] == OUTPUT_TOKENS for body in fake.bodies) == 4
        ):
            os.kill(os.getpid(), signal.SIGINT)
        return False

    fake = FakeServer(refuses=refuses)
    with running(fake) as url:
        assert load("--url", url, "--concurrency", "1", "--json", str(path)) == 130
    assert "Cut off: these are the figures until then." in capsys.readouterr().out
    document = msgspec.json.decode(path.read_bytes(), type=LoadDocument)
    assert not document.is_complete
    assert 3 <= len(document.runs[0].samples) < 6


def test_ctrl_c_before_the_first_answer_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(body: dict[str, Any]) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return False

    path = tmp_path / "load.json"
    with running(FakeServer(refuses=refuses)) as url:
        assert load("--url", url, "--json", str(path)) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Cut off before the first answer.\n")
    assert not path.exists()


def test_a_server_that_is_not_there_ends_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "load", "--url", "http://127.0.0.1:1", "--workload", "random"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "pagefall: error: http://127.0.0.1:1: cannot connect: All connection attempts failed\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--peer-model", "m"], "--peer-model: needs --peer-url"),
        (["--peer-api-key", "k"], "--peer-api-key: needs --peer-url"),
        (["--url", "http://x", "--peer-url", "http://x/v1"], "--peer-url: the same server as --url"),
        (["--serve=--page-size 16", "--peer-url", "http://x"], "--peer-url: compares running servers"),
        (["--json", "/nowhere/at/all.json"], "--json: /nowhere/at/all.json: there is no folder"),
        (["--slo", "fast"], "--slo: 'fast' is not"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*argv)


def test_a_chart_without_matplotlib_is_refused_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[..., Any] = lambda name: None  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(ConfigError, match=r"--png: needs matplotlib, pip install 'pagefall\[bench\]'"):
        load("--png", "x.png")


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not say whether its pages move is not waited for."""
    monkeypatch.setattr("pagefall.bench.load.servers._SETTLE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_rest")
def test_a_command_that_cannot_restart_the_server_is_named_and_what_came_before_is_kept() -> None:
    measurement = Measurement()
    with running(FakeServer()) as url:
        config = parse_load(
            [*TIERS, "--evict-tokens", "40", "--url", url, "--restart-command", "echo no such unit >&2; exit 5"], {}
        )
        with pytest.raises(PagefallError, match="--restart-command ended with status 5: no such unit"):
            anyio.run(partial(measure, make_plan(config), config, seed=1, measurement=measurement))
    (run,) = measurement.runs
    assert [sample.part for sample in run.measured] == ["cold", "same again", "new document", "after eviction"]
    assert [sample.num_seen_tokens for sample in run.measured] == [0, 29, 0, 29]
    assert sum(not sample.is_measured for sample in run.samples) == 2
    assert not measurement.is_complete


@pytest.mark.usefixtures("no_rest")
def test_a_restarted_server_is_waited_for() -> None:
    measurement = Measurement()
    with running(FakeServer()) as url:
        config = parse_load([*TIERS, "--evict-tokens", "0", "--url", url, "--restart-command", "true"], {})
        anyio.run(partial(measure, make_plan(config), config, seed=1, measurement=measurement))
    assert measurement.is_complete
    assert measurement.runs[0].samples[-1].part == "after restart"
