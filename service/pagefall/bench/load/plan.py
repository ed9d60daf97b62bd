"""What will be sent, and how, decided before anything is: sizes, loop and limits without contradictions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from pagefall.bench.load.arrivals import arrival_times
from pagefall.bench.load.client import Endpoint
from pagefall.bench.load.config import LoadConfig, TrafficConfig, WorkloadConfig
from pagefall.bench.load.driver import ClosedLoop, Limits, Loop, OpenLoop
from pagefall.bench.load.presets import PRESETS, Preset, PresetName
from pagefall.bench.load.sessions import sessions
from pagefall.bench.load.shapes import (
    SHAPES,
    MultiTurn,
    RandomPrompts,
    Shape,
    Tiers,
    Trace,
    scaled,
    scaled_count,
)
from pagefall.bench.load.trace import has_messages, load_trace
from pagefall.bench.load.turns import Session
from pagefall.errors import ConfigError

_DEFAULT_CONCURRENCY: Final = 8
_DEFAULT_RANDOM_REQUESTS: Final = 100
_NO_SIZES: Final = frozenset({"workload", "preset", "scale"})


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are sent.

    `closed`: as many at a time as `concurrency`. The others are open loops, with no more than `max_concurrency` at a
    time if that is set: `rate`, at `request_rate` a second; `at once`; `trace`, at the trace's times.
    """

    arrivals: Literal["closed", "rate", "at once", "trace"]
    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None

    def __str__(self) -> str:
        limit = "" if self.max_concurrency is None else f", at most {self.max_concurrency} at a time"
        match self.arrivals:
            case "closed":
                return f"closed loop, {self.concurrency} at a time"
            case "rate":
                burstiness = "Poisson" if self.burstiness == 1 else f"burstiness {self.burstiness:g}"
                return f"open loop, {self.request_rate:g} requests a second ({burstiness}){limit}"
            case "at once":
                return f"open loop, all at once{limit}"
            case "trace":
                return f"open loop, the trace's times{limit}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`scale` is already in `shape` and `pace`. `trace`: the sessions of one that was read."""

    shape: Shape
    pace: Pace
    limits: Limits
    endpoint: Endpoint
    preset: PresetName | None = None
    scale: float = 1.0
    trace: tuple[Session, ...] | None = None
    can_restart: bool = False

    def sessions(self, seed: int) -> Iterator[Session]:
        """The same ones for the same seed."""
        if self.trace is not None:
            return iter(self.trace)
        return sessions(self.shape, random.Random(seed), can_restart=self.can_restart)

    def loop(self, seed: int) -> Loop:
        """With the same times for the same seed."""
        pace = self.pace
        match pace.arrivals:
            case "closed":
                assert pace.concurrency is not None
                return ClosedLoop(concurrency=pace.concurrency)
            case "rate":
                assert pace.request_rate is not None
                rng = random.Random(f"arrivals {seed}")
                arrivals = arrival_times(pace.request_rate, rng, burstiness=pace.burstiness)
            case "at once":
                arrivals = itertools.repeat(0.0)
            case "trace":
                assert self.trace is not None
                arrivals = iter([session.at_seconds or 0.0 for session in self.trace])
        return OpenLoop(arrivals=arrivals, max_concurrency=pace.max_concurrency)

    @property
    def num_requests(self) -> int | None:
        """How many there are to send; None: as many as there is time for."""
        limit = self.limits.num_requests
        if isinstance(self.shape, RandomPrompts):
            return limit
        total = sum(len(session.turns) for session in self.sessions(0))
        return total if limit is None else min(total, limit)


def make_plan(config: LoadConfig) -> Plan:
    """Reads the trace if there is one. Raises `ConfigError` for what is missing, contradictory or of no use."""
    workload, traffic = config.workload, config.traffic
    preset = None if workload.preset is None else PRESETS[workload.preset]
    shape = _shape(workload, preset)
    pace = _pace(traffic, shape, preset, workload.scale)
    trace = _trace(shape, pace, workload.scale)
    endpoint = config.servers.endpoint
    is_chat = trace is not None and has_messages(trace)
    if is_chat and endpoint == "completions":
        raise ConfigError("--endpoint completions: the trace has messages; use chat, or leave the flag out")
    num_requests = traffic.num_requests
    if num_requests is None and preset is not None and preset.num_requests is not None:
        num_requests = scaled_count(preset.num_requests, workload.scale)
    if num_requests is None and isinstance(shape, RandomPrompts) and traffic.duration is None:
        num_requests = _DEFAULT_RANDOM_REQUESTS
    return Plan(
        shape=shape,
        pace=pace,
        limits=Limits(
            num_requests=num_requests,
            seconds=traffic.duration,
            active_sessions=shape.active_users if isinstance(shape, MultiTurn) else None,
        ),
        endpoint=endpoint or ("chat" if is_chat else "completions"),
        preset=workload.preset,
        scale=workload.scale,
        trace=trace,
        can_restart=config.servers.restart_command is not None or config.servers.serve is not None,
    )


def _shape(workload: WorkloadConfig, preset: Preset | None) -> Shape:
    """The preset's or the workload's own sizes, scaled, but for those that are given."""
    sizes: dict[str, Any] = {
        field: value
        for field, value in msgspec.structs.asdict(workload).items()
        if field not in _NO_SIZES and value is not None
    }
    kind = _kind(workload, preset)
    fields = kind.__struct_fields__
    for field in sizes:
        if field not in fields:
            raise ConfigError(
                f"--{_flag(field)}: {kind.__struct_config__.tag} has no such size; it has "
                + ", ".join(f"--{_flag(known)}" for known in fields)
            )
    if kind is Trace and "trace" not in sizes:
        raise ConfigError("--workload trace: needs a file, --trace FILE")
    base = kind(**{"trace": sizes["trace"]} if kind is Trace else {}) if preset is None else preset.shape
    return msgspec.structs.replace(scaled(base, workload.scale), **sizes)


def _kind(workload: WorkloadConfig, preset: Preset | None) -> type[Shape]:
    if preset is not None:
        if workload.workload is not None:
            raise ConfigError("--workload contradicts --preset, which has a workload; give one of them")
        return type(preset.shape)
    if workload.workload is not None:
        return SHAPES[workload.workload]
    if workload.trace is not None:
        return Trace
    names = f"{', '.join(SHAPES)}; or a published shape with --preset: {', '.join(PRESETS)}"
    raise ConfigError(f"--workload: say what to send: {names}")


def _pace(traffic: TrafficConfig, shape: Shape, preset: Preset | None, scale: float) -> Pace:
    if traffic.concurrency is not None and traffic.request_rate is not None:
        raise ConfigError("--concurrency (closed loop) contradicts --request-rate (open loop); give one of them")
    if traffic.burstiness is not None and traffic.request_rate is None:
        raise ConfigError("--burstiness: needs --request-rate")
    if isinstance(shape, Tiers):
        if traffic.request_rate is not None or traffic.concurrency not in (None, 1):
            raise ConfigError(
                "--workload tiers: sends one request at a time; leave --concurrency and --request-rate out"
            )
        pace = Pace(arrivals="closed", concurrency=1)
    elif traffic.concurrency is not None:
        pace = Pace(arrivals="closed", concurrency=traffic.concurrency)
    elif traffic.request_rate is not None:
        pace = _open(traffic.request_rate, burstiness=traffic.burstiness or 1.0)
    elif isinstance(shape, Trace):
        pace = Pace(arrivals="trace")
    elif preset is not None and preset.request_rate is not None:
        pace = _open(preset.request_rate, max_concurrency=_scaled(preset.max_concurrency, scale))
    else:
        published = None if preset is None else _scaled(preset.concurrency, scale)
        pace = Pace(arrivals="closed", concurrency=published or _DEFAULT_CONCURRENCY)
    if traffic.max_concurrency is None:
        return pace
    if pace.arrivals == "closed":
        raise ConfigError("--max-concurrency: limits an open loop; in a closed one use --concurrency")
    return msgspec.structs.replace(pace, max_concurrency=traffic.max_concurrency)


def _open(request_rate: float, *, burstiness: float = 1.0, max_concurrency: int | None = None) -> Pace:
    if request_rate == math.inf:
        return Pace(arrivals="at once", max_concurrency=max_concurrency)
    return Pace(arrivals="rate", request_rate=request_rate, burstiness=burstiness, max_concurrency=max_concurrency)


def _trace(shape: Shape, pace: Pace, scale: float) -> tuple[Session, ...] | None:
    if not isinstance(shape, Trace):
        return None
    return tuple(load_trace(shape, scale=scale, needs_times=pace.arrivals == "trace"))


def _scaled(count: int | None, scale: float) -> int | None:
    return None if count is None else scaled_count(count, scale)


def _flag(field: str) -> str:
    return field.replace("_", "-")
