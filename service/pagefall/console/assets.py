"""The console's files, read once."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import Final

_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

INDEX: Final = "index.html"


@dataclass(frozen=True)
class Asset:
    """`etag` is weak: it names both encodings of the same content."""

    media_type: str
    content: bytes
    compressed: bytes
    etag: str


def load_assets() -> Mapping[str, Asset]:
    """Every file by its name. There are no others, so no name leads out of the folder."""
    folder = files("pagefall.console") / "static"
    return {
        path.name: _asset(path.read_bytes(), media_type)
        for path in folder.iterdir()
        if (media_type := _MEDIA_TYPES.get(PurePath(path.name).suffix)) is not None
    }


def _asset(content: bytes, media_type: str) -> Asset:
    return Asset(
        media_type=media_type,
        content=content,
        compressed=gzip.compress(content, mtime=0),
        etag=f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
    )
