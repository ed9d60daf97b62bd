"""`pagefall bench control-plane`: what deciding costs, without a model: the prefix cache and the scheduler's steps."""

from __future__ import annotations

import sys

import msgspec

from pagefall.bench.cache_timing import CacheTiming, time_cache
from pagefall.bench.report import align
from pagefall.bench.scheduler_timing import NUM_QUEUED, time_scheduler

_STEPS_PER_REPEAT = 10


class ControlPlaneBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    page_size: int = 16
    cached_tokens: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    prompt_tokens: tuple[int, ...] = (1_000, 8_000, 32_000, 128_000)
    running: tuple[int, ...] = (1, 64, 256)
    repeats: int = 20


def bench_control_plane(config: ControlPlaneBenchConfig) -> int:
    """Measure and print the tables; returns 0."""
    num_steps = _STEPS_PER_REPEAT * config.repeats
    tables = {
        f"prefix cache, median of {config.repeats}": _cache_rows(config),
        f"scheduler, plan and apply, median of {num_steps} steps": _scheduler_rows(config, num_steps),
    }
    for title, rows in tables.items():
        lines = [f"{title}, page size {config.page_size}, µs of CPU time", "", *align(rows), ""]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _cache_rows(config: ControlPlaneBenchConfig) -> list[list[str]]:
    """An operation and a prompt length a row, a size of the cache a column; "-" where the prompt is the larger."""
    rows = [["", *(f"{size:,} cached" for size in config.cached_tokens)]]
    for num_prompt_tokens in config.prompt_tokens:
        timings = [_time_cache(config, size, num_prompt_tokens) for size in config.cached_tokens]
        for operation in CacheTiming.__struct_fields__:
            name = f"{operation.removesuffix('_us')} {num_prompt_tokens:,} tokens"
            rows.append(
                [name, *("-" if timing is None else f"{getattr(timing, operation):,.0f}" for timing in timings)]
            )
    return rows


def _scheduler_rows(config: ControlPlaneBenchConfig, num_steps: int) -> list[list[str]]:
    """A number of running requests a row, a kind of step a column."""
    rows = [["", "decode", f"decode, {NUM_QUEUED:,} queued", "requests end and start"]]
    for num_running in config.running:
        timing = time_scheduler(page_size=config.page_size, num_running=num_running, num_steps=num_steps)
        rows.append([f"{num_running:,} running", *(f"{us:,.0f}" for us in msgspec.structs.astuple(timing))])
    return rows


def _time_cache(config: ControlPlaneBenchConfig, num_cached_tokens: int, num_prompt_tokens: int) -> CacheTiming | None:
    if num_prompt_tokens > num_cached_tokens:
        return None
    return time_cache(
        page_size=config.page_size,
        num_cached_tokens=num_cached_tokens,
        num_prompt_tokens=num_prompt_tokens,
        repeats=config.repeats,
    )
