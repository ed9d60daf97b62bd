"""`pagefall bench load`: from its configuration to its report."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

import anyio

from pagefall.bench.load.client import LoadClient
from pagefall.bench.load.comparison import compare
from pagefall.bench.load.config import LoadConfig
from pagefall.bench.load.document import LoadDocument, TargetDocument, encode
from pagefall.bench.load.driver import Driver
from pagefall.bench.load.lag import LagMeter
from pagefall.bench.load.plan import Plan, make_plan
from pagefall.bench.load.progress import Progress, progress_line
from pagefall.bench.load.report import comparison_text, heading, summary_text
from pagefall.bench.load.samples import Run
from pagefall.bench.load.servers import CommandRestart, OwnServer, Restart, TargetServer, open_client, warm_up
from pagefall.bench.load.slo import Slo, parse_slo
from pagefall.bench.load.summary import summarise
from pagefall.bench.server_process import run_until_ended
from pagefall.bench.targets import split_flags
from pagefall.errors import ConfigError, PagefallError

_PEER_REPEATS: Final = 3


class Measurement:
    """What has been measured so far; a run that is cut off is in it too."""

    def __init__(self) -> None:
        self.clients: dict[str, LoadClient] = {}
        self.runs: list[Run] = []
        self.is_complete = False

    def of(self, label: str) -> list[Run]:
        return [run for run in self.runs if run.target == label]


def bench_load(config: LoadConfig) -> int:
    """Measures, prints, writes what files are asked for. The exit status: 1 if a request failed, 130 after Ctrl-C, 0.

    Raises `ConfigError` before anything is sent, and `PagefallError` when a server cannot be used; what was measured
    until then is printed first.
    """
    plan, slo = _checked(config)
    seed = random.SystemRandom().randrange(2**32) if config.results.seed is None else config.results.seed
    started_at = datetime.now(UTC)
    measurement = Measurement()
    failure: PagefallError | None = None
    is_interrupted = False
    try:
        run_until_ended(partial(measure, plan, seed=seed, measurement=measurement), config)
    except KeyboardInterrupt:
        is_interrupted = True
    except PagefallError as error:
        failure = error
    if any(run.samples for run in measurement.runs):
        _report(config, plan, slo, measurement, seed=seed, started_at=started_at)
    elif is_interrupted:
        sys.stderr.write("Cut off before the first answer.\n")
    if failure is not None:
        raise failure
    if is_interrupted:
        return 130
    return 1 if any(sample.fault is not None for run in measurement.runs for sample in run.measured) else 0


async def measure(plan: Plan, config: LoadConfig, *, seed: int, measurement: Measurement) -> None:
    """Every repeat on every target, who goes first changing from repeat to repeat. Prompts differ between repeats."""
    progress = Progress(sys.stderr)
    async with _targets(plan, config) as targets:
        measurement.clients = {label: client for label, (client, _) in targets.items()}
        for client in measurement.clients.values():
            await warm_up(client, config.traffic.warm_up, _salt())
        repeats = num_repeats(config)
        for repeat in range(repeats):
            for label in targets if repeat % 2 == 0 else reversed(list(targets)):
                if len(targets) > 1 and measurement.runs:
                    await anyio.sleep(config.results.rest_seconds)
                client, restart = targets[label]
                server = TargetServer(client, seed=seed + repeat, restart=restart)
                name = label if repeats == 1 else f"{label}, repeat {repeat + 1} of {repeats}"
                await _run(plan, server, seed + repeat, partial(_add, measurement, label, repeat), progress, name)
    measurement.is_complete = True


def num_repeats(config: LoadConfig) -> int:
    return config.results.repeats or (1 if config.servers.peer_url is None else _PEER_REPEATS)


async def _run(plan: Plan, server: TargetServer, seed: int, add: partial[None], progress: Progress, name: str) -> None:
    driver = Driver(server, plan.sessions(seed), plan.loop(seed), plan.limits)
    meter = LagMeter()
    total = plan.num_requests

    def line() -> str:
        return progress_line(driver, heading=name, total=total, seconds=anyio.current_time() - driver.started_at)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(meter.measure)
            group.start_soon(progress.follow, line)
            await driver.run()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        if driver.samples:
            progress.say(line())
        add(driver, meter)


def _add(measurement: Measurement, label: str, repeat: int, driver: Driver, meter: LagMeter) -> None:
    measurement.runs.append(
        Run(
            target=label,
            repeat=repeat,
            seconds=driver.seconds,
            samples=tuple(driver.samples),
            lag=meter.result(),
            note=driver.note,
        )
    )


@asynccontextmanager
async def _targets(plan: Plan, config: LoadConfig) -> AsyncIterator[dict[str, tuple[LoadClient, Restart | None]]]:
    """Clients, each with what restarts its server, by label: `self`, and `peer` if there is one."""
    servers = config.servers
    restart: Restart | None = None if servers.restart_command is None else CommandRestart(servers.restart_command)
    async with AsyncExitStack() as stack:
        url = servers.url
        if servers.serve is not None:
            own = OwnServer(split_flags("serve", servers.serve))
            stack.push_async_callback(own.aclose)
            url, restart = await own.start(), own.restart
        found: dict[str, tuple[LoadClient, Restart | None]] = {}
        for label, target_url, model, api_key in (
            ("self", url, servers.model, servers.api_key),
            ("peer", servers.peer_url, servers.peer_model, servers.peer_api_key or servers.api_key),
        ):
            if target_url is not None:
                client = open_client(
                    target_url,
                    model=model,
                    api_key=api_key,
                    endpoint=plan.endpoint,
                    timeout_seconds=config.traffic.timeout,
                    salt=_salt(),
                )
                found[label] = (await stack.enter_async_context(client), restart)
        yield found


def _checked(config: LoadConfig) -> tuple[Plan, Slo | None]:
    """All that can be wrong before anything is sent."""
    servers, results = config.servers, config.results
    if servers.peer_url is None:
        for flag, value in (("peer-model", servers.peer_model), ("peer-api-key", servers.peer_api_key)):
            if value is not None:
                raise ConfigError(f"--{flag}: needs --peer-url")
    elif servers.serve is not None or servers.restart_command is not None:
        raise ConfigError("--peer-url: compares running servers; leave --serve and --restart-command out")
    elif servers.peer_url.rstrip("/").removesuffix("/v1") == servers.url.rstrip("/").removesuffix("/v1"):
        raise ConfigError("--peer-url: the same server as --url, whose second run would hit what the first one left")
    for flag, path in (("json", results.json), ("png", results.png)):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"--{flag}: {path}: there is no folder {Path(path).absolute().parent}")
    if results.png is not None and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--png: needs matplotlib, pip install 'pagefall[bench]'")
    return make_plan(config), None if results.slo is None else parse_slo(results.slo)


def _report(
    config: LoadConfig, plan: Plan, slo: Slo | None, measurement: Measurement, *, seed: int, started_at: datetime
) -> None:
    measured = {label: measurement.of(label) for label in measurement.clients}
    summaries = {label: summarise(runs, slo) for label, runs in measured.items() if any(run.samples for run in runs)}
    compared = compare(measured["self"], measured["peer"], slo) if len(summaries) == 2 else []
    names = {
        label: f"{client.model} at {client.http.base_url}, {client.endpoint}"
        for label, client in measurement.clients.items()
    }
    parts = [heading(plan, names, seed=seed, repeats=num_repeats(config))]
    parts += [summary_text(label, summary, measured[label]) for label, summary in summaries.items()]
    if compared:
        parts.append(comparison_text(compared, "self", "peer"))
    if not measurement.is_complete:
        parts.append("Cut off: these are the figures until then.\n")
    sys.stdout.write("\n" + "\n".join(parts))
    if config.results.json is not None:
        document = LoadDocument(
            pagefall_version=version("pagefall"),
            started_at=started_at.isoformat(timespec="seconds"),
            is_complete=measurement.is_complete,
            seed=seed,
            preset=plan.preset,
            scale=plan.scale,
            workload=plan.shape,
            pace=plan.pace,
            slo=slo,
            settings=config,
            targets={
                label: TargetDocument(
                    url=str(client.http.base_url),
                    model=client.model,
                    endpoint=client.endpoint,
                    tokens_per_word=client.tokens_per_word,
                    fields=list(client.fields),
                    summary=summaries.get(label),
                )
                for label, client in measurement.clients.items()
            },
            comparison=compared,
            runs=measurement.runs,
        )
        _write(Path(config.results.json), encode(document))
    if config.results.png is not None:
        from pagefall.bench.load.chart import write_chart

        samples = {label: [s for run in measured[label] for s in run.measured] for label in summaries}
        title = f"{plan.preset or plan.shape.__struct_config__.tag}, scale {plan.scale:g}: {plan.pace}"
        write_chart(Path(config.results.png), samples, summaries, title=title)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise PagefallError(f"{path}: {error.strerror}") from error


def _salt() -> int:
    """For words that no run has: whatever the seed, they are new to every cache."""
    return random.SystemRandom().randrange(2**32)
