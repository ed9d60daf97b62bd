"""Which store a backend is open on. Servers tell it to a router, which must know whether what one of them has written
can be read by another.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

MARK: Final = ".store-id"
"""What stores keep their identity under: no key, so no value is ever called so."""


@runtime_checkable
class Identified(Protocol):
    """A backend that knows where its values go."""

    async def identify(self) -> str | None:
        """The same for two backends, in any process on any machine, where each reads what the other has written, and
        for no others. None where that cannot be told: then nobody else is taken to have this store.

        A mark in the store itself does it; names and addresses do not, since one may mean several. Raises
        `StorageError`.
        """


async def identify(backend: object) -> str | None:
    """A digest, 16 hex digits, of what the backend says. Raises `StorageError`."""
    identity = await backend.identify() if isinstance(backend, Identified) else None
    return None if identity is None else hashlib.sha256(identity.encode()).hexdigest()[:16]


def new_mark() -> str:
    return uuid.uuid4().hex


def mark_of_folder(root: Path) -> str:
    """That of a folder, made where there is none. Blocks; raises `OSError`."""
    mark = root / MARK
    while True:
        with suppress(FileNotFoundError):
            return mark.read_text()
        new = root / f"{MARK}.{new_mark()}"
        new.write_text(new_mark())
        try:
            with suppress(FileExistsError):
                os.link(new, mark)  # whole at once; of several that do this, one is first
        finally:
            new.unlink()
