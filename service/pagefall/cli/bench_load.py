"""`pagefall bench load`: its flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pagefall.bench.load.config import LoadConfig, ResultsConfig, ServersConfig, TrafficConfig, WorkloadConfig
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, contradiction, parse_arguments

LOAD_FLAGS: Final = FlagTable(
    program="pagefall bench load",
    summary="Put load on any OpenAI-compatible server, alone or beside a peer: latency, throughput, hit rate, goodput.",
    groups=(
        Group(
            "Servers",
            "servers",
            ServersConfig,
            (
                Flag("url", "the server, with or without /v1", "URL"),
                Flag("peer-url", "a second server; both are measured in turns, and the report compares them", "URL"),
                Flag("model", "the model to ask for; absent: the first one the server lists", "NAME"),
                Flag("peer-model", "the same for the peer", "NAME"),
                Flag("api-key", "bearer token", "KEY", environ="PAGEFALL_API_KEY"),
                Flag("peer-api-key", "the peer's; absent: the same", "KEY"),
                Flag("endpoint", "what to send to; absent: chat for a trace of chats, else completions"),
                Flag("serve", "flags of a server to start, measure and end, in place of --url", "FLAGS"),
                Flag(
                    "restart-command",
                    "restarts the server for --workload tiers; a shell runs it, and it returns when the old one ended",
                    "COMMAND",
                ),
            ),
        ),
        Group(
            "Workload",
            "workload",
            WorkloadConfig,
            (
                Flag("workload", "what to send"),
                Flag("preset", "a published shape in its place, with its sizes and its load"),
                Flag("scale", "multiplies lengths, numbers of groups, users and documents, and concurrency", above=0),
                Flag("groups", "generated-shared-prefix: system prompts", minimum=1),
                Flag("prompts-per-group", "generated-shared-prefix: questions under each", minimum=1),
                Flag("system-tokens", "generated-shared-prefix, multi-turn: length of the system prompt", minimum=0),
                Flag("question-tokens", "generated-shared-prefix, long-doc: length of a question", minimum=0),
                Flag("users", "multi-turn: conversations", minimum=1),
                Flag("active-users", "multi-turn: how many go on at the same time; absent: all", minimum=1),
                Flag("turns", "multi-turn: requests of each", minimum=1),
                Flag("first-tokens", "multi-turn: length of the first message", minimum=1),
                Flag("turn-tokens", "multi-turn: length of the following ones", minimum=1),
                Flag("think-seconds", "multi-turn: from an answer to the next message", minimum=0),
                Flag("answers", "multi-turn: what later prompts have as answers, words of our own or the server's"),
                Flag("documents", "long-doc: documents", minimum=1),
                Flag("questions", "long-doc: requests about each", minimum=1),
                Flag("document-tokens", "long-doc, tiers: length of a document", minimum=1),
                Flag("evict-tokens", "tiers: other documents to push the first one out; 0: leave that out", minimum=0),
                Flag("input-tokens", "random: length of a prompt", minimum=1),
                Flag("output-tokens", "all: length of an answer; a trace's where it does not say", minimum=1),
                Flag(
                    "length-spread", "lengths vary by this share either way, but for shared heads", minimum=0, maximum=1
                ),
                Flag("trace", "trace: a JSONL file, Mooncake's or of prompts or messages", "FILE"),
                Flag("trace-speed", "trace: how many times as fast as it was", above=0),
            ),
        ),
        Group(
            "Load",
            "traffic",
            TrafficConfig,
            (
                Flag("concurrency", "closed loop: requests at the same time (8 where nothing else says)", minimum=1),
                Flag("request-rate", "open loop: requests a second, by chance; inf: all at once", above=0),
                Flag("burstiness", "of the open loop: 1 is Poisson, less comes in bursts", above=0),
                Flag("max-concurrency", "hold requests of an open loop back above so many", minimum=1),
                Flag("num-requests", "end after so many (random: 100 where no time is given)", minimum=1),
                Flag("duration", "send no more after so many seconds", "SECONDS", above=0),
                Flag("warm-up", "requests before, which are not measured", minimum=0),
                Flag("timeout", "seconds that a request may take", "SECONDS", above=0),
            ),
        ),
        Group(
            "Results",
            "results",
            ResultsConfig,
            (
                Flag("repeats", "how often, each time with new prompts; absent: 1, with a peer 3", minimum=1),
                Flag("rest-seconds", "pause between runs, with a peer", "SECONDS", minimum=0),
                Flag("seed", "makes prompts and times repeat, and with them what a cache may hold; absent: random"),
                Flag("slo", "limits for goodput, as ttft=0.5,itl=0.05,e2e=10, in seconds", "LIMITS"),
                Flag("json", "write everything, every request's sample too, to this file", "FILE"),
                Flag("png", "draw it into this file; needs matplotlib, the extra bench", "FILE"),
            ),
        ),
    ),
)


def parse_load(argv: Sequence[str], environ: Mapping[str, str]) -> LoadConfig:
    """The configuration of `pagefall bench load`. Raises `ConfigError`."""
    given = parse_arguments(LOAD_FLAGS, argv, environ)
    if "serve" in given:
        for flag in ("url", "restart-command"):
            if flag in given:
                raise contradiction(given, "serve", flag, "it starts, and restarts, a server of its own")
    config: LoadConfig = build_config(LOAD_FLAGS, LoadConfig, given)
    return config
