"""`pagefall bench storage-hit`: is a hit in a lower tier ever slower than none, for the request and for its neighbours?

Servers are started one after the other: one without tiers (cold), one that fills the store, and one on that store,
throttled if asked to be, whose device and host memory know nothing yet. Prompts are new in each run, so that nothing of
them is in a store that others use; what the run left in such a store stays there.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import msgspec

from pagefall.bench.client import CompletionClient, Trace
from pagefall.bench.prompts import Prompt, TokenPrompts
from pagefall.bench.report import Figure, Row, table, to_json
from pagefall.bench.scenarios import beside_a_stream, gaps_before, gaps_beside
from pagefall.bench.server_process import run_until_ended
from pagefall.bench.targets import OwnServer, open_client, split_flags
from pagefall.messages import Tier

CaseName = Literal["storage", "host"]

_ROOM_TOKENS: Final = 2_048
"""What the device pool holds beside one prompt: the neighbour's stream."""

_HOST_RATIO: Final = 4.0


class StorageHitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`backend` and `extra_config`, a JSON object as text, are the store's; without the latter a file store is a folder
    that goes when the run ends. `serve_flags` go to every server, `tier_flags` to those with tiers. `bytes_per_second`
    and `latency_seconds` None: the store is as fast as it is.
    """

    cases: tuple[CaseName, ...] = ("storage", "host")
    tokens: int = 4_096
    repeats: int = 3
    backend: str = "file"
    extra_config: str | None = None
    bytes_per_second: float | None = None
    latency_seconds: float | None = None
    stream_tokens: int = 64
    serve_flags: str = ""
    tier_flags: str = ""
    json: str | None = None


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's time to its first token, its tokens by tier, and the gaps of a stream beside it, if there was one."""

    ttft_ms: float
    by_tier: dict[Tier, int]
    gaps_before_ms: tuple[float, ...] = ()
    gaps_beside_ms: tuple[float, ...] = ()


class Reads(msgspec.Struct, frozen=True, kw_only=True):
    alone: tuple[Read, ...]
    beside: tuple[Read, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """None, or empty, for a case that was not asked for."""

    cold: Reads | None = None
    storage: Reads | None = None
    device: tuple[Read, ...] = ()
    host: tuple[Read, ...] = ()


def bench_storage_hit(config: StorageHitConfig) -> int:
    """Measure, print the tables, write the JSON; returns 0. Raises `PagefallError` when a server cannot be used."""
    run_until_ended(_run, config)
    return 0


async def _run(config: StorageHitConfig) -> None:
    with tempfile.TemporaryDirectory(prefix="pagefall-store-") as store:
        measured = await _measure(config, Path(store))
    tables = [figures for figures in (storage_figures(measured), host_figures(measured)) if figures]
    throttle = ", ".join(f"{name} {value:g}" for name, value in throttle_setting(config).items())
    what = f"{config.tokens:,} tokens, {config.repeats} repeats"
    sys.stdout.write(f"{what}, store: {config.backend}, throttle: {throttle or 'none'}\n")
    for figures in tables:
        sys.stdout.write(f"\n{table(figures, list(figures[0].samples))}")
    if config.json is not None:
        figures = [figure for figures in tables for figure in figures]
        targets = {target: target for figure in figures for target in figure.samples}
        shown = msgspec.structs.replace(config, extra_config=None)  # there may be a password in it
        await anyio.Path(config.json).write_bytes(to_json(figures, targets, shown, reads=measured))


async def _measure(config: StorageHitConfig, store: Path) -> Measured:
    prompts = TokenPrompts(random.Random(random.SystemRandom().randrange(2**32)))
    alone, beside = ([prompts.make(config.tokens) for _ in range(config.repeats)] for _ in ("alone", "beside"))
    measured = Measured()
    if "storage" in config.cases:
        async with _server("cold", plain_flags(config), store) as client:
            measured = msgspec.structs.replace(measured, cold=await _reads(client, config, alone, beside))
    async with _server_on_the_store("fill", config, store, throttle={}) as client:
        if "host" in config.cases:
            device, host = await _device_and_host(client, config, alone)
            measured = msgspec.structs.replace(measured, device=device, host=host)
        if "storage" in config.cases:
            for prompt in (*alone, *beside):
                await client.stream(prompt, max_tokens=1)
    if "storage" in config.cases:
        async with _server_on_the_store("storage", config, store, throttle=throttle_setting(config)) as client:
            measured = msgspec.structs.replace(measured, storage=await _reads(client, config, alone, beside))
    return measured


@asynccontextmanager
async def _server_on_the_store(
    label: str, config: StorageHitConfig, folder: Path, *, throttle: dict[str, float]
) -> AsyncIterator[CompletionClient]:
    """Its settings go by a file: everybody can read a command line."""
    settings = folder / f"{label}.json"
    settings.write_bytes(msgspec.json.encode(store_settings(config, folder, throttle=throttle)))
    async with _server(label, tier_flags(config, settings), folder) as client:
        yield client


@asynccontextmanager
async def _server(label: str, flags: Sequence[str], store: Path) -> AsyncIterator[CompletionClient]:
    server = OwnServer(label=label, flags=tuple(flags))
    async with open_client(server, random.SystemRandom(), stores=store) as client:
        yield client


async def _reads(
    client: CompletionClient, config: StorageHitConfig, alone: Sequence[Prompt], beside: Sequence[Prompt]
) -> Reads:
    """Every prompt once: some with the server to themselves, the others while it writes an answer too."""
    read_alone = [_read(await client.stream(prompt, max_tokens=1)) for prompt in alone]
    read_beside = []
    for prompt in beside:
        running, trace = await beside_a_stream(client, prompt, input_tokens=config.stream_tokens, head_start=32)
        read_beside.append(
            msgspec.structs.replace(
                _read(trace),
                gaps_before_ms=gaps_before(running, trace),
                gaps_beside_ms=gaps_beside(running, trace),
            )
        )
    return Reads(alone=tuple(read_alone), beside=tuple(read_beside))


async def _device_and_host(
    client: CompletionClient, config: StorageHitConfig, prompts: Sequence[Prompt]
) -> tuple[tuple[Read, ...], tuple[Read, ...]]:
    """Each prompt after it was computed, and again after new ones as large as the device pool have come between."""
    device: list[Read] = []
    host: list[Read] = []
    for prompt in prompts:
        await client.stream(prompt, max_tokens=1)
        device.append(_read(await client.stream(prompt, max_tokens=1)))
        for _ in range(-(-pool_tokens(config) // config.tokens)):
            await client.stream(client.prompts.make(config.tokens), max_tokens=1)
        host.append(_read(await client.stream(prompt, max_tokens=1)))
    return tuple(device), tuple(host)


def pool_tokens(config: StorageHitConfig) -> int:
    """Size of the device pool: one prompt and what is beside it."""
    return config.tokens + _ROOM_TOKENS


def plain_flags(config: StorageHitConfig) -> list[str]:
    return ["--max-total-tokens", str(pool_tokens(config)), *split_flags("serve-flags", config.serve_flags)]


def tier_flags(config: StorageHitConfig, settings: Path) -> list[str]:
    """`settings` is a file with those of the store."""
    return [
        *plain_flags(config),
        "--enable-hierarchical-cache",
        *("--hicache-ratio", str(_HOST_RATIO)),
        *("--hicache-storage-backend", config.backend),
        *("--hicache-storage-backend-extra-config", f"@{settings}"),
        *split_flags("tier-flags", config.tier_flags),
    ]


def store_settings(config: StorageHitConfig, folder: Path, *, throttle: dict[str, float]) -> dict[str, Any]:
    """Those given, or else of a store in `folder`, and the throttle if there is any."""
    if config.extra_config is not None:
        settings = msgspec.json.decode(config.extra_config, type=dict[str, Any])
    else:
        settings = {"path": str(folder / "pages")} if config.backend == "file" else {}
    return settings | ({"throttle": throttle} if throttle else {})


def throttle_setting(config: StorageHitConfig) -> dict[str, float]:
    """The entry of that name in the store's settings; empty for a store at full speed."""
    settings = {"bytes_per_second": config.bytes_per_second, "latency_seconds": config.latency_seconds}
    return {name: value for name, value in settings.items() if value is not None}


def storage_figures(measured: Measured) -> list[Figure]:
    """A hit in the store beside a cold start; no figures if they were not measured."""
    storage, cold = measured.storage, measured.cold
    if storage is None or cold is None:
        return []
    reads = {"storage": storage, "cold": cold}

    def figure(row: Row, samples: dict[str, list[float]]) -> Figure:
        return Figure(row, {label: tuple(values) for label, values in samples.items()})

    alone = {label: [read.ttft_ms for read in r.alone] for label, r in reads.items()}
    beside = {label: [read.ttft_ms for read in r.beside] for label, r in reads.items()}
    before = {label: [gap for read in r.beside for gap in read.gaps_before_ms] for label, r in reads.items()}
    meanwhile = {label: [gap for read in r.beside for gap in read.gaps_beside_ms] for label, r in reads.items()}
    from_store = {
        label: [float(read.by_tier.get("storage", 0)) for read in (*r.alone, *r.beside)] for label, r in reads.items()
    }
    return [
        figure(Row("TTFT alone, median", "ms"), alone),
        figure(Row("TTFT alone, worst", "ms", "max"), alone),
        figure(Row("TTFT beside a stream, median", "ms"), beside),
        figure(Row("the stream's ITL meanwhile, mean", "ms", "mean"), meanwhile),
        figure(Row("the stream's ITL before, mean", "ms", "mean"), before),
        figure(Row("from the store, mean", "tokens", "mean"), from_store),
    ]


def host_figures(measured: Measured) -> list[Figure]:
    """A hit in host memory beside one on the device; no figures if they were not measured."""
    if not measured.host:
        return []
    reads: dict[Tier, tuple[Read, ...]] = {"host": measured.host, "device": measured.device}
    return [
        Figure(
            Row("TTFT, median", "ms"),
            {tier: tuple(read.ttft_ms for read in of_tier) for tier, of_tier in reads.items()},
        ),
        Figure(
            Row("from that tier, mean", "tokens", "mean"),
            {tier: tuple(float(read.by_tier.get(tier, 0)) for read in of_tier) for tier, of_tier in reads.items()},
        ),
    ]


def _read(trace: Trace) -> Read:
    return Read(ttft_ms=1000 * trace.ttft_seconds, by_tier=trace.cached_tokens_by_tier or {})
