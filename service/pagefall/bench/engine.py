"""`pagefall bench engine`: how fast a running server answers, beside a peer when there is one.

Two servers on one machine share its noise: each measurement alternates between them, and the one that goes first
changes from repeat to repeat. Every prompt is new, so nothing is cached that a measurement did not cache itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Literal

import anyio
import httpx
import msgspec

from pagefall.bench.client import CompletionClient, connect
from pagefall.bench.report import Figure, table, to_json
from pagefall.bench.scenarios import Scenario, inter_token_latency, interference, throughput, ttft
from pagefall.errors import PagefallError

ScenarioName = Literal["ttft", "itl", "throughput", "interference"]


class EngineBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`model` None takes the first one that the server lists; `seed` None draws one, so that a second run meets
    nothing that the first one left in a cache.
    """

    url: str = "http://127.0.0.1:30000"
    peer_url: str | None = None
    model: str | None = None
    peer_model: str | None = None
    api_key: str | None = None
    scenarios: tuple[ScenarioName, ...] = ("ttft", "itl", "throughput", "interference")
    repeats: int = 5
    prompt_tokens: tuple[int, ...] = (512, 2048, 4096)
    concurrency: int = 16
    input_tokens: int = 128
    output_tokens: int = 64
    interference_tokens: int = 6000
    settle_seconds: float = 2.0
    """How long both servers rest before each sample, with a peer: threads that have computed may spin for a while."""
    seed: int | None = None
    json: str | None = None


def bench_engine(config: EngineBenchConfig) -> int:
    """Measure, print the table, write the JSON; returns 0. Raises `PagefallError` when a server cannot be used."""
    anyio.run(run_engine_bench, config)
    return 0


async def run_engine_bench(config: EngineBenchConfig) -> None:
    """What `bench_engine` does, for callers that have an event loop."""
    seed = random.SystemRandom().randrange(2**32) if config.seed is None else config.seed
    rng = random.Random(seed)
    urls = {"self": (config.url, config.model)}
    if config.peer_url is not None:
        urls["peer"] = (config.peer_url, config.peer_model)
    headers = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
    async with AsyncExitStack() as stack:
        clients: dict[str, CompletionClient] = {}
        for label, (url, model) in urls.items():
            http = httpx.AsyncClient(
                base_url=url.rstrip("/").removesuffix("/v1"),
                headers=headers,
                timeout=httpx.Timeout(600, connect=10),
                limits=httpx.Limits(),
            )
            clients[label] = await connect(await stack.enter_async_context(http), model=model, rng=rng)
        figures: list[Figure] = []
        for scenario in _scenarios(config):
            sys.stderr.write(f"measuring {scenario.rows[0].name} ...\n")
            figures += await measure(scenario, clients, config.repeats, settle_seconds=config.settle_seconds)
    names = {label: f"{client.model} at {urls[label][0]}" for label, client in clients.items()}
    heading = "".join(f"{label}: {name}\n" for label, name in names.items())
    sys.stdout.write(f"{heading}{config.repeats} repeats, seed {seed}\n\n{table(figures, list(clients))}")
    if config.json is not None:
        settings = msgspec.structs.replace(config, seed=seed, api_key=None)
        await anyio.Path(config.json).write_bytes(to_json(figures, names, settings))


def _scenarios(config: EngineBenchConfig) -> Iterator[Scenario]:
    for name in config.scenarios:
        match name:
            case "ttft":
                yield from map(ttft, config.prompt_tokens)
            case "itl":
                yield inter_token_latency(config.input_tokens, 2 * config.output_tokens)
            case "throughput":
                yield throughput(config.concurrency, config.input_tokens, config.output_tokens)
            case "interference":
                yield interference(config.interference_tokens, config.input_tokens)


async def measure(
    scenario: Scenario, clients: Mapping[str, CompletionClient], repeats: int, *, settle_seconds: float = 0.0
) -> list[Figure]:
    """Run `scenario` `repeats` times against every client in turn, the order reversed every other time.

    Before each run nothing is sent for `settle_seconds` if there are several clients. A client whose server fails in
    the scenario (a prompt over its context, say) gets a note and no further tries.
    """
    samples: dict[str, list[list[float]]] = {label: [[] for _ in scenario.rows] for label in clients}
    notes: dict[str, str] = {}
    for repeat in range(repeats):
        for label in clients if repeat % 2 == 0 else reversed(list(clients)):
            if label in notes:
                continue
            if len(clients) > 1:
                await anyio.sleep(settle_seconds)
            try:
                results = await scenario.run(clients[label])
            except PagefallError as error:
                notes[label] = str(error)
                continue
            for row_samples, result in zip(samples[label], results, strict=True):
                row_samples.extend(result)
    return [
        Figure(row, {label: tuple(samples[label][index]) for label in clients}, notes)
        for index, row in enumerate(scenario.rows)
    ]
