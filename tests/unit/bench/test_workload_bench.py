from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest

from pagefall.bench.targets import ServersConfig, targets
from pagefall.bench.workload_bench import MultiTurnConfig, ReplayConfig, run_workload_bench
from pagefall.bench.workloads import MultiTurn, multi_turn
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.cli.workload_flags import MULTI_TURN_FLAGS

from .conftest import FakeServer, Serve

pytestmark = pytest.mark.anyio

WORKLOAD = MultiTurn(sessions=3, turns=2, first_tokens=64, turn_tokens=8, output_tokens=2)


async def test_both_servers_get_the_same_prompts_and_the_report_compares_them(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    fake, peer = FakeServer(cached_tokens=16), FakeServer()
    async with serve(fake) as http, serve(peer) as peer_http:
        config = MultiTurnConfig(
            servers=ServersConfig(url=f"{http.base_url}", peer_url=f"{peer_http.base_url}/v1", api_key="secret"),
            workload=WORKLOAD,
            replay=ReplayConfig(parallel=1, seed=7, json=str(path)),
        )
        asked = targets(config.servers, serve="", against="")
        await run_workload_bench(asked, partial(multi_turn, config.workload), config)
    assert [body["prompt"] for body in fake.bodies[-6:]] == [body["prompt"] for body in peer.bodies[-6:]]
    expected = [r.token_ids for requests in multi_turn(WORKLOAD, random.Random(7)) for r in requests]
    assert [tuple(body["prompt"]) for body in fake.bodies[-6:]] == expected
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("self: http://127.0.0.1:")
    assert lines[2] == "sessions 3, turns 2, first_tokens 64, turn_tokens 8, output_tokens 2, parallel 1, seed 7"
    assert lines[4].split() == ["self", "peer", "self/peer", "unit"]
    document = json.loads(path.read_text())
    figures = {figure["name"]: figure["values"] for figure in document["figures"]}
    assert figures["cached, host"] == {"self": 96.0, "peer": None}
    assert figures["turn 2: ceiling"]["self"] == pytest.approx(100 * 64 / 74)
    assert {label: len(samples) for label, samples in document["requests"].items()} == {"self": 6, "peer": 6}
    assert document["settings"]["replay"]["seed"] == 7
    assert "secret" not in path.read_text()


def test_flags_reach_the_configuration() -> None:
    argv = ["--serve", "--page-size 32", "--against=--disable-radix-cache", "--restart", "--turns", "3", "--parallel=4"]
    config = build_config(MULTI_TURN_FLAGS, MultiTurnConfig, parse_arguments(MULTI_TURN_FLAGS, argv, {}))
    assert config == MultiTurnConfig(
        servers=ServersConfig(serve="--page-size 32", against="--disable-radix-cache", restart=True),
        workload=MultiTurn(turns=3),
        replay=ReplayConfig(parallel=4),
    )
