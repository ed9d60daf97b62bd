"""Which store a backend is open on. Servers tell it to a router, which must know whether what one of them has written
can be read by another.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

MARK: Final = ".store-id"
"""What stores keep their identity under: no key, so no value is ever called so."""

_MARK_TEXT: Final = re.compile(rb"[0-9a-f]{32}")


@runtime_checkable
class Identified(Protocol):
    """A backend that knows where its values go."""

    async def identify(self) -> str | None:
        """The same for two backends, in any process on any machine, where each reads what the other has written, and
        for no others. None where that cannot be told: then nobody else is taken to have this store.

        A mark in the store itself does it; names and addresses do not, since one may mean several. Raises
        `StorageError`.
        """


async def identity_of(backend: object) -> str | None:
    """What the backend says; None of one that cannot. For whoever wraps it. Raises `StorageError`."""
    return await backend.identify() if isinstance(backend, Identified) else None


async def identify(backend: object) -> str | None:
    """A digest, 16 hex digits, of what the backend says. Raises `StorageError`."""
    identity = await identity_of(backend)
    return None if identity is None else hashlib.sha256(identity.encode()).hexdigest()[:16]


def new_mark() -> str:
    return uuid.uuid4().hex


def mark_of_folder(root: Path) -> str:
    """That of a folder, made where there is none, or a damaged one. Blocks; raises `OSError`."""
    mark = root / MARK
    while True:
        known = None
        with suppress(FileNotFoundError):
            known = mark.read_bytes()
        if known is not None and _MARK_TEXT.fullmatch(known):
            return known.decode()
        new = root / f"{MARK}.{new_mark()}"
        try:
            with new.open("x") as file:
                file.write(new_mark())
                file.flush()
                os.fsync(file.fileno())
            _place(new, mark, is_first=known is None)
        finally:
            new.unlink(missing_ok=True)


def _place(new: Path, mark: Path, *, is_first: bool) -> None:
    """Whole at once. Of several that are first at the same time one wins; where the folder knows no links, the last."""
    if is_first:
        try:
            os.link(new, mark)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
        else:
            return
    new.replace(mark)
