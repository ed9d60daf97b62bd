"""How much memory there is, and how many pages of keys and values fit into it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec
import torch

from pagefall.config import CacheConfig, SchedulerConfig
from pagefall.errors import ConfigError, ModelError
from pagefall.model.spec import ModelSpec

_DEFAULT_FRACTION = {"cuda": 0.88}
_DEFAULT_FRACTION_SHARED = 0.30
"""On devices that share their memory with everything else on the machine: CPU and MPS."""

_PROC_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


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
    return _free_host_memory(_PROC_MEMINFO, _CGROUP)


def size_kv_pool(
    spec: ModelSpec, cache: CacheConfig, scheduler: SchedulerConfig, *, kv_itemsize: int, free_bytes: int
) -> PoolSize:
    """Pages for `--max-total-tokens` tokens, else for a fraction of `free_bytes` (what the weights have left over).

    `kv_itemsize` is the bytes of one number of the KV dtype. More than `--max-running-requests` full contexts can
    never be in use at once, so the fraction stops there. Raises `ConfigError` for a `--max-total-tokens` that holds no
    page or does not fit, `ModelError` where not even one page fits.
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
        most = scheduler.max_running_requests * math.ceil(spec.context_length / cache.page_size)
        num_pages = min(int(free_bytes * fraction) // page_bytes, most)
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


def check_weights_fit(spec: ModelSpec, free_bytes: int) -> None:
    """Raises `ModelError` where the weights alone are more than `free_bytes`."""
    if spec.weights_bytes > free_bytes:
        raise ModelError(
            f"{spec.served_name} needs {_gib(spec.weights_bytes)} for its weights in {str(spec.dtype)[6:]} and "
            f"{_gib(free_bytes)} are free on {spec.device}: choose a smaller model, dtype or another --device."
        )


def _free_host_memory(meminfo: Path, cgroup: Path) -> int:
    """The kernel's estimate of available memory, or what the container's limit leaves if that is less."""
    if sys.platform != "linux":
        raise ModelError("The free memory of this system is unknown: pass --max-total-tokens.")
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory/memory.limit_in_bytes", cgroup / "memory/memory.usage_in_bytes"),
    ):
        if limit.is_file() and usage.is_file() and (text := limit.read_text().strip()) != "max":
            available = min(available, max(0, int(text) - int(usage.read_text())))
    return available


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
