"""Lines written to a file by a thread of its own: whoever has one to write never waits, whatever the disk does."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from pagefall.errors import ConfigError

T = TypeVar("T")

_log = logging.getLogger("pagefall.insight")

_STANDARD_OUTPUT: Final = "-"
_STANDARD_OUTPUT_FD: Final = 1

_LAST_LINES_SECONDS: Final = 5.0
"""How long the end of the program waits for lines to be written."""


class LineWriter(Generic[T]):
    """Writes what is put into it, in order, each as a line. A line is in the file as a whole or not at all, but that a
    disk may fail within one, which then is followed by a line break.

    At most `capacity` wait; what is put beyond that is dropped, as are lines that cannot be written. How many were is
    said, by `lost`, in a line of its own as soon as lines can be written again.

    The file is appended to, made if it is missing, and opened again when another has taken its place.
    """

    def __init__(
        self,
        path: str,
        encode: Callable[[T], bytes],
        lost: Callable[[int], bytes],
        *,
        thread_name: str,
        capacity: int,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        """`path` "-" is standard output. `encode` and `lost` make a line, without its end, on the writing thread.

        Raises `OSError` where the file cannot be opened.
        """
        self._file = _File(path, write)
        self._encode = encode
        self._lost = lost
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: deque[T] = deque()
        self._num_lost = 0
        """Lines that nobody has been told of yet."""
        self._is_closed = False
        self._has_failed = False
        self._file.open()
        # A daemon, for a disk that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        """Takes microseconds. Dropped, and counted, where too many wait, and after `close`."""
        with self._changed:
            if len(self._waiting) >= self._capacity or self._is_closed:
                self._num_lost += 1
            else:
                self._waiting.append(item)
                self._changed.notify()

    def close(self, timeout_seconds: float = _LAST_LINES_SECONDS) -> bool:
        """Whether all that was put has been written, or has failed, in that time."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._is_closed):
                    self._changed.wait()
                items, num_lost = tuple(self._waiting), self._num_lost
                self._waiting.clear()
                self._num_lost = 0
            if items or num_lost:
                self._write(items, num_lost)
            elif self._is_closed:
                self._file.close()
                return

    def _write(self, items: Sequence[T], num_lost: int) -> None:
        num_written = 0
        try:
            self._file.follow()
            if num_lost:
                self._file.write_line(self._lost(num_lost))
                num_lost = 0
            for item in items:
                self._file.write_line(self._encode(item))
                num_written += 1
        except OSError as error:
            if not self._has_failed:
                _log.warning("%s cannot be written: %s; lines are lost until it can", self._file.path, error)
            self._has_failed = True
            self._file.close()
            if self._is_closed:
                return  # there will be no other line to say it in
            with self._changed:
                self._num_lost += num_lost + len(items) - num_written
        else:
            if self._has_failed:
                _log.warning("%s is written again", self._file.path)
            self._has_failed = False


class _File:
    """The end of a file. Not buffered: what was written is there when the process is killed."""

    def __init__(self, path: str, write: Callable[[int, memoryview], int]) -> None:
        self.path = "standard output" if path == _STANDARD_OUTPUT else path
        self._is_file = path != _STANDARD_OUTPUT
        self._fd: int | None = None
        self._write = write
        self._is_torn = False

    def open(self) -> None:
        if not self._is_file:
            self._fd = _STANDARD_OUTPUT_FD
        elif self._fd is None:
            # Prompts are for the operator's eyes.
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._is_torn = self._is_torn and os.fstat(self._fd).st_size > 0

    def follow(self) -> None:
        """Opens the file that has the path now: the one before may have been moved away, or removed."""
        if self._is_file and self._fd is not None:
            try:
                is_same = os.path.samestat(os.fstat(self._fd), Path(self.path).stat())
            except FileNotFoundError:
                is_same = False
            if not is_same:
                self.close()
        self.open()

    def write_line(self, line: bytes) -> None:
        assert self._fd is not None
        rest = memoryview((b"\n" if self._is_torn else b"") + line + b"\n")
        while rest:
            num_bytes = self._write(self._fd, rest)
            self._is_torn = True
            rest = rest[num_bytes:]
        self._is_torn = False

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if self._is_file and fd is not None:
            os.close(fd)


def refuse_unwritable(path: str, error: OSError, flag: str) -> ConfigError:
    """The error for a file that cannot be opened, and what to do."""
    folder = Path(path).parent
    fix = f"make the folder {folder} first" if not folder.is_dir() else "name a file that can be written"
    return ConfigError(f"{flag}: {path} cannot be opened: {error.strerror or error}; {fix}")
