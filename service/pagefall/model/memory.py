"""How much memory there is, and how many pages of keys and values fit into it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from pagefall.config import CacheConfig, SchedulerConfig, TierConfig
from pagefall.errors import ConfigError, ModelError
from pagefall.model.spec import ModelSpec

_DEFAULT_FRACTION = {"cuda": 0.88}
_DEFAULT_FRACTION_SHARED = 0.30
"""On devices that share their memory with everything else on the machine: CPU and MPS."""

_PROC = Path("/proc")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """The device pool. `context_length` is what one request may use: the model's, or the whole pool if that is less."""

    num_pages: int
    num_tokens: int
    num_bytes: int
    context_length: int


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now without pushing anything else out."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return free_host_memory()


def size_kv_pool(
    spec: ModelSpec,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    tiers: TierConfig,
    *,
    kv_itemsize: int,
    free_bytes: int,
) -> PoolSize:
    """Pages for `--max-total-tokens` tokens, else for a fraction of `free_bytes` (what the weights have left over).

    `kv_itemsize` is the bytes of one number of the KV dtype. More than `--max-running-requests` full contexts can
    never be in use at once, so the fraction stops there. Where the device's memory is the host's, the host pool that
    `tiers` asks for comes out of the fraction. Raises `ConfigError` for a `--max-total-tokens` that holds no page or
    does not fit and for a `--hicache-size` that leaves no page, `ModelError` where not even one page fits.
    """
    page_bytes = cache.page_size * spec.kv_bytes_per_token(kv_itemsize)
    if cache.max_total_tokens is not None:
        num_pages = cache.max_total_tokens // cache.page_size
        if num_pages < 1:
            raise ConfigError(
                f"--max-total-tokens {cache.max_total_tokens} is less than one page: "
                f"pass at least --page-size ({cache.page_size})."
            )
        if num_pages * page_bytes > free_bytes:
            raise ConfigError(
                f"--max-total-tokens {cache.max_total_tokens} takes {_gib(num_pages * page_bytes)} of key/value cache "
                f"and {_gib(free_bytes)} are free on {spec.device}: pass at most "
                f"{free_bytes // page_bytes * cache.page_size}."
            )
    else:
        fraction = cache.mem_fraction_static
        if fraction is None:
            fraction = _DEFAULT_FRACTION.get(spec.device.type, _DEFAULT_FRACTION_SHARED)
        both_bytes = int(free_bytes * fraction)
        most = scheduler.max_running_requests * math.ceil(spec.context_length / cache.page_size)
        num_pages = min(_device_part(both_bytes, tiers, spec.device) // page_bytes, most)
        if num_pages < 1 <= both_bytes // page_bytes:
            raise ConfigError(
                f"{_host_pool_flag(tiers)} leaves no page of {page_bytes:,} bytes for the device pool: both come out "
                f"of {_gib(both_bytes)}, {fraction:.0%} of the {_gib(free_bytes)} free on {spec.device}. Lower it, "
                f"raise --mem-fraction-static or pass --max-total-tokens."
            )
        if num_pages < 1:
            raise ModelError(
                f"{spec.served_name} leaves no room for its key/value cache: one page takes {_gib(page_bytes)}, "
                f"and {fraction:.0%} of the {_gib(free_bytes)} free on {spec.device} is less."
            )
    num_tokens = num_pages * cache.page_size
    return PoolSize(
        num_pages=num_pages,
        num_tokens=num_tokens,
        num_bytes=num_pages * page_bytes,
        context_length=min(spec.context_length, num_tokens),
    )


def _device_part(num_bytes: int, tiers: TierConfig, device: torch.device) -> int:
    """What of `num_bytes` is the device pool's."""
    if not tiers.enable_hierarchical_cache or device.type == "cuda":
        return num_bytes
    if tiers.hicache_size is not None:
        return num_bytes - int(tiers.hicache_size * 10**9)
    return int(num_bytes / (1 + tiers.hicache_ratio))


def _host_pool_flag(tiers: TierConfig) -> str:
    if tiers.hicache_size is not None:
        return f"--hicache-size {tiers.hicache_size:g}"
    return f"--hicache-ratio {tiers.hicache_ratio:g}"


def check_weights_fit(spec: ModelSpec, free_bytes: int) -> None:
    """Raises `ModelError` where the weights alone are more than `free_bytes`."""
    if spec.weights_bytes > free_bytes:
        raise ModelError(
            f"{spec.served_name} needs {_gib(spec.weights_bytes)} for its weights in {str(spec.dtype)[6:]} and "
            f"{_gib(free_bytes)} are free on {spec.device}: choose a smaller model, dtype or another --device."
        )


def free_host_memory(proc: Path = _PROC, cgroup_root: Path = _CGROUP_ROOT) -> int:
    """The kernel's estimate of what is available, or what this process's control groups leave if that is less.

    Reads Linux's `/proc` and cgroup file systems, versions 1 and 2; elsewhere it is half of the machine's memory.
    """
    try:
        meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return min([available, *_cgroup_rooms(proc, cgroup_root)])


def _cgroup_rooms(proc: Path, root: Path) -> Iterator[int]:
    """Bytes left below the limit of every control group that bounds this process: its own and those above."""
    try:
        memberships = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, name in memberships:
        if controllers == "":
            top, limit, usage, reclaimable = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage, reclaimable = (
                root / "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        group = top / name.lstrip("/")
        while group.is_relative_to(top):
            with contextlib.suppress(OSError, ValueError):  # no such file here, or the limit is "max"
                room = int((group / limit).read_text()) - int((group / usage).read_text())
                yield max(0, room + _statistic(group / "memory.stat", reclaimable))
            group = group.parent


def _statistic(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.split()[0] == name), 0)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
