"""SHA-256 of large files, each read once as long as it stays the same."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class FileDigests:
    """Remembers digests in `folder`, one small file for each, named after the large file's identity.

    A file is known by path, device, inode, size, and the times of its last change. Safe to use from several threads
    and processes at once. A folder that cannot be written costs reading the files again, and a line in the log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, path: Path) -> bytes:
        """SHA-256 of the content of `path`, 32 bytes; reads all of it unless the digest is known. Raises `OSError`."""
        path = path.resolve()
        identity = _identity(path)
        known = self._folder / hashlib.sha256(identity).hexdigest()[:32]
        if (digest := _read(known)) is not None:
            return digest
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        if _identity(path) == identity:  # else it was being written
            self._remember(known, digest)
        return digest

    def _remember(self, known: Path, digest: bytes) -> None:
        """The name appears with its whole content."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._folder, prefix=".", delete=False) as file:
                file.write(digest.hex())
            Path(file.name).replace(known)
        except OSError as error:
            logger.warning("%s: the digest of the weights is not kept, the next start reads them again", error)


def _identity(path: Path) -> bytes:
    stat = path.stat()
    numbers = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return os.fsencode(path) + b"\0" + repr(numbers).encode()


def _read(known: Path) -> bytes | None:
    """None where there is nothing, or nothing that could be a digest."""
    try:
        text = known.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return bytes.fromhex(text) if _HEX_DIGEST.fullmatch(text) else None
