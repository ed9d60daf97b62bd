"""Where a process keeps what it is writing, and how others tell that it has died.

Each process has a folder `<root>/.temp/<random>` with a file `lock` that it holds by flock for as long as it lives. The
kernel drops that lock with the process, however it ends and whatever container it ran in: a folder whose lock can be
taken has no owner, and what is in it will never be finished.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from pagefall_storage.file_layout import TEMP_FOLDER

_LOCK: Final = "lock"


class TempFolder:
    """This process's folder under `<root>/.temp`. Safe to use from several threads. Raises `OSError` throughout."""

    def __init__(self, root: Path) -> None:
        self._parent = root / TEMP_FOLDER
        self._numbers = itertools.count()
        self._renewal = threading.Lock()
        self._folder, self._lock_fd = _claim(self._parent)

    def new_path(self) -> str:
        """A path that nothing has yet."""
        return f"{self._folder}/{next(self._numbers)}"

    def create(self) -> tuple[int, str]:
        """A new file open for writing: its descriptor, which is the caller's to close, and its path."""
        folder = self._folder
        try:
            return self._create()
        except FileNotFoundError:
            self._renew(folder)
            return self._create()

    def close(self) -> None:
        """Removes the folder with all that is in it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock_fd)

    def _create(self) -> tuple[int, str]:
        path = self.new_path()
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path

    def _renew(self, lost: Path) -> None:
        """Claims another folder, once, because someone has removed the one `lost` (`rm -r` in a live store)."""
        with self._renewal:
            if self._folder == lost:
                lost_fd = self._lock_fd
                self._folder, self._lock_fd = _claim(self._parent)
                os.close(lost_fd)


def clean_up(root: Path) -> int:
    """Removes the temporary folders whose owners have died and returns how many there were.

    One that cannot be removed, perhaps another user's, is left. Raises `OSError` if they cannot be listed.
    """
    try:
        folders = list((root / TEMP_FOLDER).iterdir())
    except FileNotFoundError:
        return 0
    return sum(_remove_if_dead(folder) for folder in folders)


def _claim(parent: Path) -> tuple[Path, int]:
    """Makes and locks a folder. Another process's `clean_up` may take it before it is locked: then the next one."""
    while True:
        folder = parent / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            lock_fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            continue
        except OSError:
            os.close(lock_fd)
            raise
        if os.fstat(lock_fd).st_nlink > 0:
            return folder, lock_fd
        os.close(lock_fd)


def _remove_if_dead(folder: Path) -> bool:
    try:
        lock_fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # Its owner is about to create the lock, or its remover has just removed it. Only the latter leaves it empty.
        with suppress(OSError):
            folder.rmdir()
        return False
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in folder.iterdir():
            if path.name != _LOCK:
                _remove_tree(path)
        # Last: while the lock is there, whoever finds this folder half empty finishes the work.
        (folder / _LOCK).unlink()
        folder.rmdir()
    except OSError:
        return False
    finally:
        os.close(lock_fd)
    return True


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
