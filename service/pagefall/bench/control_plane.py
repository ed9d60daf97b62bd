"""`pagefall bench control-plane`: what deciding costs, without a model: the prefix cache and the scheduler's steps."""

from __future__ import annotations

import sys

import msgspec

from pagefall.bench.cache_timing import CacheTiming, time_cache
from pagefall.bench.report import align


class ControlPlaneBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    page_size: int = 16
    cached_tokens: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    prompt_tokens: tuple[int, ...] = (1_000, 8_000, 32_000, 128_000)
    repeats: int = 20


def bench_control_plane(config: ControlPlaneBenchConfig) -> int:
    """Measure and print the tables; returns 0."""
    sys.stdout.write(f"prefix cache, page size {config.page_size}, median of {config.repeats}, in µs\n\n")
    sys.stdout.write("\n".join(align(_cache_rows(config))) + "\n")
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


def _time_cache(config: ControlPlaneBenchConfig, num_cached_tokens: int, num_prompt_tokens: int) -> CacheTiming | None:
    if num_prompt_tokens > num_cached_tokens:
        return None
    return time_cache(
        page_size=config.page_size,
        num_cached_tokens=num_cached_tokens,
        num_prompt_tokens=num_prompt_tokens,
        repeats=config.repeats,
    )
