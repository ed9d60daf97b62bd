"""A worker as an operator names it: its base URL, and a name if that should be another than `w0`, `w1`, ..."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

from pagefall.router.routing import WorkerId

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: WorkerId
    name: str | None = None


def worker_spec(url: str, name: str | None = None) -> WorkerSpec:
    """Raises `ValueError` that says what is wrong with it, and what would be right.

    A `/v1` at the end is taken away: clients are given such URLs, and so operators have them at hand.
    """
    text = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    else:
        is_good = is_good and not (parts.query or parts.fragment or parts.username or parts.password)
        is_good = is_good and text.isascii() and text.isprintable() and " " not in text
    if not is_good:
        raise ValueError(f"{url[:200]!r} is no worker's URL: write it like http://host:port")
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is no worker's name: use up to 64 letters, digits, '.', '_' and '-'")
    return WorkerSpec(worker_id=WorkerId(text), name=name)
