"""`pagefall bench`: the benchmark commands and their flags."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from pagefall.bench.control_plane import ControlPlaneBenchConfig, bench_control_plane
from pagefall.bench.engine import EngineBenchConfig, bench_engine
from pagefall.bench.load.command import bench_load
from pagefall.bench.router_overhead import RouterBenchConfig, bench_router
from pagefall.bench.storage_hit import StorageHitConfig, bench_storage_hit
from pagefall.bench.workload_bench import (
    MultiTurnConfig,
    SharedPrefixConfig,
    bench_multi_turn,
    bench_shared_prefix,
)
from pagefall.cli.bench_load import parse_load
from pagefall.cli.bench_store import STORE_FLAGS, resolve_store
from pagefall.cli.flags import Flag, FlagTable, Group, nearest
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.cli.workload_flags import MULTI_TURN_FLAGS, SHARED_PREFIX_FLAGS
from pagefall.errors import ConfigError

C = TypeVar("C", bound=msgspec.Struct)

ENGINE_FLAGS = FlagTable(
    program="pagefall bench engine",
    summary="Time a running OpenAI-compatible server through /v1/completions, alone or against a peer.",
    groups=(
        Group(
            "Servers",
            "",
            EngineBenchConfig,
            (
                Flag("url", "the server to time", "URL"),
                Flag("peer-url", "a second server; the table then ends with the ratio of the two", "URL"),
                Flag("model", "the model to ask for; absent: the first one the server lists", "NAME"),
                Flag("peer-model", "the same for the peer", "NAME"),
                Flag("api-key", "bearer token for both", "KEY", environ="PAGEFALL_API_KEY"),
            ),
        ),
        Group(
            "Measurements",
            "",
            EngineBenchConfig,
            (
                Flag("scenarios", "what to measure, with commas"),
                Flag("repeats", "how often each measurement is made", minimum=1),
                Flag("prompt-tokens", "prompt lengths for the time to the first token, with commas", "N,N", minimum=1),
                Flag("concurrency", "streams at the same time for throughput", minimum=1),
                Flag("input-tokens", "prompt length for inter-token latency and throughput", minimum=1),
                Flag("output-tokens", "answer length for throughput; inter-token latency takes twice that", minimum=2),
                Flag("interference-tokens", "length of the prompt that is read beside a running stream", minimum=1),
                Flag("settle-seconds", "how long both servers rest before each sample, with a peer", minimum=0),
                Flag("seed", "makes the prompts repeat, and with them what a cache may hold; absent: random"),
                Flag("json", "write every sample to this file too", "FILE"),
            ),
        ),
    ),
)

CONTROL_PLANE_FLAGS = FlagTable(
    program="pagefall bench control-plane",
    summary="Time the prefix cache and the scheduler, without a server and without a model.",
    groups=(
        Group(
            "Measurements",
            "",
            ControlPlaneBenchConfig,
            (
                Flag("page-size", "token slots in a page", minimum=1),
                Flag("cached-tokens", "sizes of the cache, with commas", "N,N", minimum=1),
                Flag("prompt-tokens", "prompt lengths, with commas", "N,N", minimum=1),
                Flag("running", "numbers of running requests, with commas", "N,N", minimum=1),
                Flag("repeats", "how often each operation is timed; ten times as many steps", minimum=1),
            ),
        ),
    ),
)

ROUTER_BENCH_FLAGS = FlagTable(
    program="pagefall bench router",
    summary="Time what the router adds to the first token, before a worker that answers at once.",
    groups=(
        Group(
            "Measurements",
            "",
            RouterBenchConfig,
            (
                Flag("rate", "requests a second", above=0),
                Flag("seconds", "length of each round, at the worker and at the router", "SECONDS", above=0),
                Flag("rounds", "how often, in turns", minimum=1),
                Flag("prompt-tokens", "what each prompt has of its own, about", minimum=1),
                Flag("system-tokens", "length of the system prompt before it, one of 16", minimum=0),
                Flag("policy", "which worker gets a request"),
                Flag("router-flags", "further flags of the router, as one word", "FLAGS"),
                Flag("json", "write every sample to this file too", "FILE"),
            ),
        ),
    ),
)

STORAGE_HIT_FLAGS = FlagTable(
    program="pagefall bench storage-hit",
    summary="Time hits in a store against cold starts, and hits in host memory against hits on the device.",
    groups=(
        Group(
            "Measurements",
            "",
            StorageHitConfig,
            (
                Flag("cases", "what to measure, with commas"),
                Flag("tokens", "length of the prompts", minimum=512),
                Flag("repeats", "prompts of each kind", minimum=1),
                *STORE_FLAGS,
                Flag("bytes-per-second", "throttle the store to this bandwidth; absent: as fast as it is", above=0),
                Flag("latency-seconds", "let each of its operations take so much longer", minimum=0),
                Flag("stream-tokens", "length of the prompt whose answer is written beside the hit", minimum=1),
                Flag("serve-flags", "further flags of every server, as one word", "FLAGS"),
                Flag("tier-flags", "further flags of the servers with tiers, as one word", "FLAGS"),
                Flag("json", "write every sample to this file too", "FILE"),
            ),
        ),
    ),
)


_COMMANDS: Final = (
    "load",
    "engine",
    "multi-turn",
    "shared-prefix",
    "storage-hit",
    "control-plane",
    "router",
    "copies",
    "transfers",
)


def bench(argv: Sequence[str]) -> int:
    """Run the benchmark named `argv[0]` with the flags after it; returns its exit status. Raises `PagefallError`."""
    name, flags = argv[0], argv[1:]
    match name:
        case "load":
            return bench_load(parse_load(flags, os.environ))
        case "engine":
            return bench_engine(parse_engine(flags, os.environ))
        case "multi-turn":
            return bench_multi_turn(_parse(MULTI_TURN_FLAGS, MultiTurnConfig, flags))
        case "shared-prefix":
            return bench_shared_prefix(_parse(SHARED_PREFIX_FLAGS, SharedPrefixConfig, flags))
        case "storage-hit":
            return bench_storage_hit(parse_storage_hit(flags, os.environ))
        case "control-plane":
            return bench_control_plane(parse_control_plane(flags, os.environ))
        case "router":
            return bench_router(_parse(ROUTER_BENCH_FLAGS, RouterBenchConfig, flags))
        case _:
            alike = nearest(name, _COMMANDS)
            raise ConfigError(f"bench {name}: unknown; " + (f"did you mean {alike}?" if alike else "see --help"))


def parse_engine(argv: Sequence[str], environ: Mapping[str, str]) -> EngineBenchConfig:
    """The configuration of `pagefall bench engine`. Raises `ConfigError`."""
    given = parse_arguments(ENGINE_FLAGS, argv, environ)
    if "peer-model" in given and "peer-url" not in given:
        raise ConfigError("--peer-model: needs --peer-url")
    config: EngineBenchConfig = build_config(ENGINE_FLAGS, EngineBenchConfig, given)
    return config


def parse_control_plane(argv: Sequence[str], environ: Mapping[str, str]) -> ControlPlaneBenchConfig:
    """The configuration of `pagefall bench control-plane`. Raises `ConfigError`."""
    given = parse_arguments(CONTROL_PLANE_FLAGS, argv, environ)
    config: ControlPlaneBenchConfig = build_config(CONTROL_PLANE_FLAGS, ControlPlaneBenchConfig, given)
    return config


def parse_storage_hit(argv: Sequence[str], environ: Mapping[str, str]) -> StorageHitConfig:
    """The configuration of `pagefall bench storage-hit`. Raises `ConfigError`."""
    given = resolve_store(parse_arguments(STORAGE_HIT_FLAGS, argv, environ))
    config: StorageHitConfig = build_config(STORAGE_HIT_FLAGS, StorageHitConfig, given)
    return config


def _parse(table: FlagTable, config: type[C], argv: Sequence[str]) -> C:
    parsed: C = build_config(table, config, parse_arguments(table, argv, os.environ))
    return parsed
