from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, get_args

import pytest

from pagefall.bench.load.config import LoadConfig
from pagefall.bench.load.driver import ClosedLoop, OpenLoop
from pagefall.bench.load.plan import Plan, make_plan
from pagefall.bench.load.presets import PRESETS, PresetName
from pagefall.bench.load.shapes import SHAPES, GeneratedSharedPrefix, MultiTurn, RandomPrompts, ShapeName, Trace
from pagefall.cli.bench_load import parse_load
from pagefall.errors import ConfigError


def plan(*argv: str) -> Plan:
    return make_plan(parse_load(argv, {}))


def test_every_workload_and_preset_can_be_named() -> None:
    assert set(SHAPES) == set(get_args(ShapeName))
    assert set(PRESETS) == set(get_args(PresetName))
    for name in PRESETS:
        assert plan("--preset", name).preset == name


def test_flags_reach_the_configuration() -> None:
    argv = ["--url", "http://x/v1", "--workload", "multi-turn", "--think-seconds", "2", "--concurrency", "3"]
    config = parse_load([*argv, "--slo", "ttft=1", "--seed=4"], {"PAGEFALL_API_KEY": "k"})
    assert (config.servers.url, config.servers.api_key) == ("http://x/v1", "k")
    assert config.workload.think_seconds == 2.0
    assert config.traffic.concurrency == 3
    assert (config.results.slo, config.results.seed) == ("ttft=1", 4)


def test_sizes_that_are_given_are_not_scaled_and_others_are() -> None:
    shape = plan("--preset", "sglang-generated-shared-prefix", "--scale", "0.25", "--output-tokens", "9").shape
    assert shape == GeneratedSharedPrefix(
        groups=16, prompts_per_group=16, system_tokens=512, question_tokens=32, output_tokens=9
    )


def test_a_presets_load_is_scaled_but_for_its_rate() -> None:
    pace = plan("--preset", "sglang-hicache-multiturn", "--scale", "0.125").pace
    assert (pace.arrivals, pace.request_rate, pace.max_concurrency) == ("rate", 16.0, 16)
    assert plan("--preset", "sglang-random", "--scale", "0.02").limits.num_requests == 20


def test_a_load_that_is_given_takes_the_presets_place() -> None:
    closed = plan("--preset", "sglang-hicache-multiturn", "--concurrency", "5").pace
    assert (closed.arrivals, closed.concurrency, closed.max_concurrency) == ("closed", 5, None)
    burst = plan("--preset", "lmcache-long-doc-qa", "--request-rate", "inf").pace
    assert (burst.arrivals, burst.concurrency, burst.request_rate) == ("at once", None, None)


def test_loops_are_what_the_pace_says() -> None:
    closed = plan("--workload", "random").loop(0)
    assert closed == ClosedLoop(concurrency=8)
    burst = plan("--workload", "random", "--request-rate", "inf", "--max-concurrency", "2").loop(0)
    assert isinstance(burst, OpenLoop)
    assert list(itertools.islice(burst.arrivals, 3)) == [0.0, 0.0, 0.0]
    assert burst.max_concurrency == 2
    poisson = plan("--workload", "random", "--request-rate", "5")
    times = [
        list(itertools.islice(loop.arrivals, 3)) for loop in map(poisson.loop, (1, 1, 2)) if isinstance(loop, OpenLoop)
    ]
    assert times[0] == times[1] != times[2]


def test_random_prompts_have_no_end_where_time_has_one() -> None:
    assert plan("--workload", "random").num_requests == 100
    timed = plan("--workload", "random", "--duration", "5")
    assert (timed.num_requests, timed.limits.seconds) == (None, 5.0)
    assert isinstance(timed.shape, RandomPrompts)


def test_the_number_of_requests_is_known_before() -> None:
    assert plan("--workload", "multi-turn", "--users", "3", "--turns", "4").num_requests == 12
    assert plan("--workload", "multi-turn", "--users", "3", "--turns", "4", "--num-requests", "5").num_requests == 5


def test_active_users_are_a_limit_of_the_run() -> None:
    made = plan("--workload", "multi-turn", "--active-users", "2")
    assert isinstance(made.shape, MultiTurn)
    assert made.limits.active_sessions == 2


def test_a_trace_brings_its_times_and_its_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "messages": [{"role": "user", "content": "Hi"}]}\n' * 2)
    made = plan("--trace", str(path))
    assert made.shape == Trace(trace=str(path))
    assert (made.pace.arrivals, made.endpoint, made.num_requests) == ("trace", "chat", 2)
    loop = made.loop(0)
    assert isinstance(loop, OpenLoop)
    assert list(loop.arrivals) == [0.0, 0.0]
    assert plan("--trace", str(path), "--concurrency", "2").pace.arrivals == "closed"
    with pytest.raises(ConfigError, match="--endpoint completions: the trace has messages"):
        plan("--trace", str(path), "--endpoint", "completions")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--workload: say what to send: generated-shared-prefix, .*--preset: sglang-generated"),
        (["--workload", "random", "--preset", "sglang-random"], "--workload contradicts --preset"),
        (["--workload", "random", "--groups", "2"], "--groups: random has no such size; it has --input-tokens"),
        (["--preset", "sglang-random", "--users", "2"], "--users: random has no such size"),
        (["--workload", "trace"], "--workload trace: needs a file, --trace FILE"),
        (["--workload", "random", "--concurrency", "2", "--request-rate", "1"], "--concurrency .* contradicts"),
        (["--workload", "random", "--burstiness", "2"], "--burstiness: needs --request-rate"),
        (["--workload", "random", "--max-concurrency", "2"], "--max-concurrency: limits an open loop"),
        (["--workload", "tiers", "--concurrency", "2"], "--workload tiers: sends one request at a time"),
        (["--workload", "tiers", "--request-rate", "2"], "--workload tiers: sends one request at a time"),
        (["--workload", "random", "--request-rate", "nan"], "--request-rate: nan is too small"),
        (["--workload", "random", "--scale", "0"], "--scale: 0.0 is too small"),
        (["--workload", "chat"], "--workload: 'chat' is not one of"),
        (["--serve=--x", "--url", "http://x"], "--serve contradicts --url"),
        (["--serve=", "--workload", "tiers"], "--serve: the value is empty"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(*argv)


def test_rates_are_finite_in_the_plan() -> None:
    for name in PRESETS:
        rate = plan("--preset", name).pace.request_rate
        assert rate is None or math.isfinite(rate)


def test_an_own_server_or_a_command_makes_a_restart_possible() -> None:
    for flags in (["--serve=--page-size 16"], ["--restart-command", "systemctl restart pagefall"]):
        made: Any = plan("--workload", "tiers", *flags)
        assert made.can_restart
    assert not make_plan(parse_load(["--workload", "tiers"], {})).can_restart
    assert LoadConfig().servers.restart_command is None
