"""Plug-ins as a package manager leaves them."""

from __future__ import annotations

from pathlib import Path

PLUG_IN = """
from pagefall_storage.memory import MemoryBackend

class Mine(MemoryBackend):
    pass

async def open_mine(config, *, value_bytes):
    store = Mine()
    store.opened_with = (dict(config), value_bytes)
    return store
"""


def install(folder: Path, distribution: str, module: str, source: str, *, name: str = "mine") -> None:
    """What a package manager leaves of a distribution with one module and one entry point."""
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{distribution.replace('-', '_')}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[pagefall.storage_backends]\n{name} = {module}:open_mine\n")
