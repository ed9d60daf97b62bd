"""`pagefall bench copies`: pages between a CPU's device pool and the host pool, against memcpy of the same bytes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import msgspec
import numpy as np
import torch

from pagefall.bench.report import align
from pagefall.errors import ConfigError
from pagefall.messages import PageIds
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.tiers.copier import CpuCopier
from pagefall.tiers.host_memory import HostMemory

_GAP_PAGES = 3
"""Between two runs of pages."""


class CopiesBenchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the pool is the embedded model's unless said otherwise: a page has 368,640 bytes then."""

    num_pages: int = 256
    run_pages: tuple[int, ...] = (256, 8, 1)
    repeats: int = 20
    num_layers: int = 30
    num_kv_heads: int = 3
    head_dim: int = 64
    page_size: int = 16


def bench_copies(config: CopiesBenchConfig) -> int:
    """Measure and print the table; returns 0. Raises `ConfigError`."""
    if max(config.run_pages) > config.num_pages:
        raise ConfigError(f"--run-pages {max(config.run_pages)}: more than --num-pages {config.num_pages}")
    num_pool_pages = config.num_pages * (1 + _GAP_PAGES)
    layers = [LayerShape(config.num_kv_heads, config.head_dim, config.head_dim)] * config.num_layers
    kv_pool = KVPool(
        layers,
        num_pages=num_pool_pages,
        page_size=config.page_size,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    memory = HostMemory(kv_pool.page_bytes, num_pool_pages, pinned=False)
    memory.payloads[:] = 1
    copier = CpuCopier(kv_pool, memory)
    num_bytes = config.num_pages * kv_pool.page_bytes
    source, target = np.ones(num_bytes, dtype=np.uint8), np.ones(num_bytes, dtype=np.uint8)
    rows = [["runs of pages", "memcpy GB/s", "device->host", "ratio", "host->device", "ratio"]]
    for run_pages in config.run_pages:
        pages = _page_ids(config.num_pages, run_pages)
        seconds = _in_turns(
            (
                partial(np.copyto, target, source),
                partial(copier.offload, pages, pages),
                partial(copier.load_back, pages, pages),
            ),
            config.repeats,
        )
        plain, down, up = (num_bytes / each / 1e9 for each in seconds)
        rows.append([f"{run_pages}", *(f"{x:.2f}" for x in (plain, down, down / plain, up, up / plain))])
    title = f"{config.num_pages} pages of {kv_pool.page_bytes:,} bytes, GB/s, median of {config.repeats}"
    sys.stdout.write("\n".join([title, "", *align(rows)]) + "\n")
    return 0


def _page_ids(num_pages: int, run_pages: int) -> PageIds:
    """`num_pages` pages in runs, each some pages behind the one before."""
    pages = np.arange(num_pages)
    return (pages + pages // run_pages * _GAP_PAGES).astype(np.int32)


def _in_turns(calls: tuple[Callable[[], object], ...], repeats: int) -> list[float]:
    """The median seconds of each call, made in turns, so that whatever else the machine does meets all of them."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + repeats):
        for call, its_seconds in zip(calls, seconds, strict=True):
            started = time.perf_counter()
            call()
            its_seconds.append(time.perf_counter() - started)
    return [median(its_seconds[1:]) for its_seconds in seconds]
