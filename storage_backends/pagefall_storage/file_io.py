"""Reading and writing the file of one value. Blocking: these run on the file store's threads.

Whatever stands where a value should be, a folder, a FIFO, a loop of links, an unreadable file, is an outcome and never
a hang, and writing or removing the value puts it right.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagefall_storage.file_temp import TempFolder
from pagefall_storage.protocol import Corrupt, Failed, GetOutcome, Hit, Miss, PutOutcome, Stored

Write = Callable[[int, memoryview], int]
"""`os.write`, or something in its place that fails."""

# O_NONBLOCK: a FIFO without a writer would be waited for. It changes nothing for a regular file.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def read_value(path: str, into: memoryview) -> GetOutcome:
    """Fills `into` from the file and marks it as used, or says why not. Never raises `OSError`."""
    try:
        fd = os.open(path, _READ)
        try:
            return _read(fd, into)
        finally:
            os.close(fd)
    except OSError as error:
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                return Miss()
            case errno.ELOOP | errno.ENXIO | errno.EISDIR | errno.ESPIPE:  # a link, a socket, a folder, a FIFO
                return Corrupt("not a file")
            case errno.EACCES if _may_be_listed(path):  # else it is the store that may not be used, not this value
                return Corrupt("unreadable")
            case _:
                return Failed("error", f"cannot read {path}: {os.strerror(error.errno or 0)}")


def touch_if_stored(path: str, num_bytes: int) -> bool:
    """Whether there is a readable file of that length. If so it is marked as used. Never raises `OSError`."""
    if not os.access(path, os.R_OK):  # the usual case, and an exception less
        return False
    try:
        fd = os.open(path, _READ)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != num_bytes:
                return False
            _mark_used(fd)
            return True
        finally:
            os.close(fd)
    except OSError:
        return False


def stored_bytes(path: str) -> int | None:
    """The length of the file, None if there is none. Raises `OSError` when that cannot be told."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def write_value(path: str, value: memoryview, *, temp: TempFolder, fsync: bool, write: Write = os.write) -> PutOutcome:
    """Puts a complete file at `path`, in place of whatever is there. Never raises `OSError`.

    `fsync`: the file and its name are on the disk, not just in the system's memory, before it returns.
    """
    try:
        fd, temp_path = temp.create()
        try:
            try:
                _write(fd, value, write)
                if fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            _publish(temp_path, path, temp=temp, fsync=fsync)
        except OSError:
            with suppress(OSError):  # what cannot be removed now is removed when the folder has no owner any more
                Path(temp_path).unlink()
            raise
    except OSError as error:
        reason = f"cannot write {path}: {os.strerror(error.errno or 0)}"
        return Failed("full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "error", reason)
    return Stored()


def remove_value(path: str, *, temp: TempFolder) -> bool:
    """Removes whatever is at `path` and returns whether anything was. Raises `OSError`."""
    try:
        Path(path).unlink()
    except IsADirectoryError:
        _displace(path, temp)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _read(fd: int, into: memoryview) -> GetOutcome:
    """Asks for one byte more than there should be: one call tells a value that is too long, too."""
    one_more = bytearray(1)
    num_read = os.preadv(fd, [into, one_more], 0)
    while num_read < into.nbytes:
        num = os.preadv(fd, [into[num_read:], one_more], num_read)
        if num == 0:
            return Corrupt("short")
        num_read += num
    if num_read > into.nbytes:
        return Corrupt("long")
    _mark_used(fd)
    return Hit()


def _may_be_listed(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


def _mark_used(fd: int) -> None:
    with suppress(OSError):  # a store that may only be read forgets the order of use at a restart, no more
        os.utime(fd)


def _write(fd: int, value: memoryview, write: Write) -> None:
    num_written = 0
    while num_written < value.nbytes:
        num_written += write(fd, value[num_written:])


def _publish(temp_path: str, path: str, *, temp: TempFolder, fsync: bool) -> None:
    num_changed_folders = 1
    try:
        os.replace(temp_path, path)  # noqa: PTH105 - by pathlib it takes a tenth of the time of a write
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        num_changed_folders = 3
        Path(temp_path).replace(path)
    except IsADirectoryError:
        _displace(path, temp)
        Path(temp_path).replace(path)
    if fsync:
        for folder in Path(path).parents[:num_changed_folders]:
            _sync(folder)


def _displace(path: str, temp: TempFolder) -> None:
    """Removes a folder that stands in place of a value: at once for all readers, then what is in it."""
    displaced = Path(path).rename(temp.new_path())
    shutil.rmtree(displaced)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
