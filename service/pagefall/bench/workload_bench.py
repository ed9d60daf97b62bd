"""`pagefall bench multi-turn` and `pagefall bench shared-prefix`: what a prefix cache is for, measured from outside.

Servers are asked one after the other, never at once: on one machine each has all of it.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec
from tqdm import tqdm

from pagefall.bench.client import CompletionClient
from pagefall.bench.replay import Run, replay
from pagefall.bench.report import table, to_json
from pagefall.bench.server_process import run_until_ended
from pagefall.bench.targets import OwnServer, ServersConfig, Target, open_client, targets
from pagefall.bench.workload_report import part_figures, run_figures
from pagefall.bench.workloads import MultiTurn, Round, SharedPrefix, multi_turn, repeated, shared_prefix

MULTI_TURN_SERVE: Final = "--max-total-tokens 12288 --enable-hierarchical-cache --hicache-ratio 4"
MULTI_TURN_AGAINST: Final = "--max-total-tokens 12288"
SHARED_PREFIX_SERVE: Final = "--max-total-tokens 24576"
SHARED_PREFIX_AGAINST: Final = "--max-total-tokens 24576 --disable-radix-cache"


class ReplayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`seed` None draws one, so that a second run meets nothing that the first one left in a cache."""

    parallel: int = 2
    seed: int | None = None
    json: str | None = None


class MultiTurnConfig(msgspec.Struct, frozen=True, kw_only=True):
    servers: ServersConfig = ServersConfig()
    workload: MultiTurn = MultiTurn()
    replay: ReplayConfig = ReplayConfig()


class SharedPrefixConfig(msgspec.Struct, frozen=True, kw_only=True):
    servers: ServersConfig = ServersConfig()
    workload: SharedPrefix = SharedPrefix()
    replay: ReplayConfig = ReplayConfig()


def bench_multi_turn(config: MultiTurnConfig) -> int:
    """Measure, print the tables, write the JSON; returns 0. Raises `PagefallError` when a server cannot be used."""
    asked = targets(config.servers, serve=MULTI_TURN_SERVE, against=MULTI_TURN_AGAINST)
    run_until_ended(partial(run_workload_bench, asked, partial(multi_turn, config.workload)), config)
    return 0


def bench_shared_prefix(config: SharedPrefixConfig) -> int:
    """The same for the other workload."""
    asked = targets(config.servers, serve=SHARED_PREFIX_SERVE, against=SHARED_PREFIX_AGAINST)
    run_until_ended(partial(run_workload_bench, asked, partial(shared_prefix, config.workload)), config)
    return 0


async def run_workload_bench(
    asked: Sequence[Target],
    make_rounds: Callable[[random.Random], list[Round]],
    config: MultiTurnConfig | SharedPrefixConfig,
) -> None:
    """What the commands do, for callers that have an event loop. Every target gets the same prompts in the same order.

    The warm-up of a target is random and none of the workload's, whatever the seed.
    """
    seed = random.SystemRandom().randrange(2**32) if config.replay.seed is None else config.replay.seed
    rounds = make_rounds(random.Random(seed))
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="pagefall-stores-") as stores:
        for target in asked:
            async with open_client(target, random.SystemRandom(), stores=Path(stores)) as client:
                is_restart = isinstance(target, OwnServer) and target.restarts is not None
                runs[target.label] = await _replay(
                    client, repeated(rounds) if is_restart else rounds, config, label=target.label
                )
    names = {target.label: str(target) for target in asked}
    heading = "".join(f"{label}: {name}\n" for label, name in names.items())
    totals, parts = run_figures(runs), part_figures(runs)
    sizes = {**msgspec.structs.asdict(config.workload), "parallel": config.replay.parallel, "seed": seed}
    sys.stdout.write(f"{heading}{', '.join(f'{name} {size}' for name, size in sizes.items())}\n\n")
    sys.stdout.write(f"{table(totals, list(runs))}\n{table(parts, list(runs))}")
    if config.replay.json is not None:
        settings = msgspec.structs.replace(
            config,
            servers=msgspec.structs.replace(config.servers, api_key=None),
            replay=msgspec.structs.replace(config.replay, seed=seed),
        )
        document = to_json(
            totals + parts, names, settings, requests={label: run.samples for label, run in runs.items()}
        )
        await anyio.Path(config.replay.json).write_bytes(document)


async def _replay(
    client: CompletionClient, rounds: Sequence[Round], config: MultiTurnConfig | SharedPrefixConfig, *, label: str
) -> Run:
    # disable=None: a bar is for terminals.
    with tqdm(total=sum(map(len, rounds)), desc=label, unit="req", disable=None) as bar:
        return await replay(
            client,
            rounds,
            output_tokens=config.workload.output_tokens,
            parallel=config.replay.parallel,
            on_answer=bar.update,
        )
