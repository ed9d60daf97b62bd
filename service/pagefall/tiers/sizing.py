"""How many pages the host tier has."""

from __future__ import annotations

import math
from typing import Final

from pagefall.config import TierConfig
from pagefall.errors import ConfigError
from pagefall.tiers.host_memory import slot_bytes

_LEAST_SPARE_BYTES: Final = 512 * 2**20
_SPARE_FRACTION: Final = 0.05


def refuse_impossible_size(tiers: TierConfig, *, free_bytes: int) -> None:
    """What cannot fit into `free_bytes` of host memory whatever the model takes is refused before that is loaded.

    Raises `ConfigError`.
    """
    if tiers.hicache_size is not None and tiers.hicache_size * 1e9 > free_bytes:
        raise ConfigError(
            f"--hicache-size {tiers.hicache_size:g} is a host pool of {tiers.hicache_size:.2f} GB, and "
            f"{free_bytes / 1e9:.2f} GB of host memory are free: pass less, or leave out --enable-hierarchical-cache."
        )


def num_host_pages(tiers: TierConfig, *, page_bytes: int, num_device_pages: int, free_bytes: int) -> int:
    """Pages of the host pool: as many as `--hicache-size` holds, else `--hicache-ratio` times the device pool.

    `free_bytes` is the host memory that is free now, with the device pool allocated. 5% of it stays free, 512 MiB at
    least. Raises `ConfigError` with the numbers and the fix where the pool is larger, or holds no page.
    """
    slot = slot_bytes(page_bytes)
    if tiers.hicache_size is not None:
        flag = f"--hicache-size {tiers.hicache_size:g}"
        num_pages = int(tiers.hicache_size * 1e9) // slot
        unit = slot / 1e9
    else:
        flag = f"--hicache-ratio {tiers.hicache_ratio:g}"
        num_pages = int(num_device_pages * tiers.hicache_ratio)
        unit = 1 / num_device_pages
    if num_pages < 1:
        raise ConfigError(
            f"{flag} holds no page of {slot:,} bytes: pass at least {math.ceil(unit * 1e6) / 1e6:g}, or leave out "
            f"--enable-hierarchical-cache."
        )
    most = max(0, free_bytes - max(_LEAST_SPARE_BYTES, int(free_bytes * _SPARE_FRACTION))) // slot
    if num_pages > most:
        raise ConfigError(
            f"{flag} is a host pool of {num_pages * slot / 1e9:.2f} GB, and of the {free_bytes / 1e9:.2f} GB of host "
            f"memory that are free {most * slot / 1e9:.2f} GB may be used: pass at most "
            f"{math.floor(most * unit * 1e3) / 1e3:g}, or leave out --enable-hierarchical-cache."
        )
    return num_pages
