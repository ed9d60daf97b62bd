"""What the log says at start of settings that are accepted and change nothing here."""

from __future__ import annotations

import msgspec

from pagefall.config import TierConfig


def start_notes(config: TierConfig, device_type: str) -> tuple[str, ...]:
    """One line for each setting of `config` that has no effect on `device_type` ("cpu", "cuda", "mps")."""
    if not config.enable_hierarchical_cache:
        return ()
    notes = []
    if device_type != "cuda" and config.hicache_io_backend != _default("hicache_io_backend"):
        notes.append(
            f"--hicache-io-backend {config.hicache_io_backend} has no meaning on {device_type}: the CPU copies pages"
        )
    elif config.hicache_io_backend == "direct" and device_type == "cuda":
        notes.append("--hicache-io-backend direct is taken as kernel: a kernel gathers the pages of every copy")
    if config.hicache_mem_layout != "page_first":
        notes.append(f"--hicache-mem-layout {config.hicache_mem_layout} changes nothing: host pages are page_first")
    if config.hicache_size is not None and config.hicache_ratio != _default("hicache_ratio"):
        notes.append(
            f"--hicache-ratio {config.hicache_ratio:g} is not used: --hicache-size {config.hicache_size:g} wins"
        )
    return tuple(notes)


def _default(name: str) -> object:
    return next(field.default for field in msgspec.structs.fields(TierConfig) if field.name == name)
