"""The flags of `pagefall bench multi-turn` and `pagefall bench shared-prefix`."""

from __future__ import annotations

from pagefall.bench.targets import ServersConfig
from pagefall.bench.workload_bench import (
    MULTI_TURN_AGAINST,
    MULTI_TURN_SERVE,
    SHARED_PREFIX_AGAINST,
    SHARED_PREFIX_SERVE,
    ReplayConfig,
)
from pagefall.bench.workloads import MultiTurn, SharedPrefix
from pagefall.cli.flags import Flag, FlagTable, Group


def _servers(serve: str, against: str) -> Group:
    return Group(
        "Servers",
        "servers",
        ServersConfig,
        (
            Flag("serve", f'flags of a server to start and measure; absent: "{serve}"', "FLAGS"),
            Flag(
                "against",
                "flags of the one to compare with, started when the first has ended; a single flag needs the form "
                f'--against=--flag; absent, and --serve too: "{against}"',
                "FLAGS",
            ),
            Flag("restart", "start the first server once more and send everything again: what does its store keep?"),
            Flag("url", "measure this running server instead", "URL"),
            Flag("peer-url", "a second running server, measured after the first, to compare with", "URL"),
            Flag("model", "the model to ask for; absent: the first one the server lists", "NAME"),
            Flag("peer-model", "the same for the peer", "NAME"),
            Flag("api-key", "bearer token for both", "KEY", environ="PAGEFALL_API_KEY"),
        ),
    )


_REPLAY = Group(
    "Measurement",
    "replay",
    ReplayConfig,
    (
        Flag("parallel", "requests at the same time", minimum=1),
        Flag("seed", "makes prompts and order repeat, and with them what a cache may hold; absent: random"),
        Flag("json", "write every sample to this file too", "FILE"),
    ),
)

MULTI_TURN_FLAGS = FlagTable(
    program="pagefall bench multi-turn",
    summary="Sessions that go on for some turns, each with all before it in its prompt: latency, throughput, hit rate.",
    groups=(
        _servers(MULTI_TURN_SERVE, MULTI_TURN_AGAINST),
        Group(
            "Workload",
            "workload",
            MultiTurn,
            (
                Flag("sessions", "conversations; each has one request in every round", minimum=1),
                Flag("turns", "requests of a conversation", minimum=1),
                Flag("first-tokens", "length of the first prompt", minimum=1),
                Flag("turn-tokens", "new tokens in the prompt of each following turn", minimum=1),
                Flag("output-tokens", "length of the answers", minimum=1),
            ),
        ),
        _REPLAY,
    ),
)

SHARED_PREFIX_FLAGS = FlagTable(
    program="pagefall bench shared-prefix",
    summary="Groups of questions under one system prompt each (SGLang's generated-shared-prefix).",
    groups=(
        _servers(SHARED_PREFIX_SERVE, SHARED_PREFIX_AGAINST),
        Group(
            "Workload",
            "workload",
            SharedPrefix,
            (
                Flag("groups", "system prompts", minimum=1),
                Flag("questions", "questions under each", minimum=1),
                Flag("prompt-tokens", "length of a prompt, system prompt and question together", minimum=1),
                Flag("shared", "the system prompt's share of it", minimum=0, maximum=1),
                Flag("output-tokens", "length of the answers", minimum=1),
            ),
        ),
        _REPLAY,
    ),
)
