"""The caller's memory, lent to the thread of a request for as long as the caller waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RecalledError(Exception):
    """The caller has its memory back."""


class Loan:
    """One buffer. A request that stalls before it uses the buffer need not be waited for to give it back."""

    def __init__(self, memory: memoryview) -> None:
        self.num_bytes = memory.nbytes
        self._memory = memory
        self._lock = threading.Lock()
        self._is_recalled = False
        self._interrupt: Callable[[], None] | None = None

    @contextmanager
    def use(self, interrupt: Callable[[], None] = lambda: None) -> Iterator[memoryview]:
        """The memory, inside of the block only. Raises `RecalledError` if it is recalled before or in the block,
        whatever else the block raises then.

        `interrupt` makes the block end soon; another thread calls it. It is not called after the block.
        """
        with self._lock:
            if self._is_recalled:
                raise RecalledError
            self._interrupt = interrupt
        try:
            yield self._memory
        except Exception as error:
            if self._is_recalled:
                raise RecalledError from error
            raise
        finally:
            with self._lock:
                self._interrupt = None
        if self._is_recalled:
            raise RecalledError

    def recall(self) -> bool:
        """No use begins after this; one under way is interrupted. Returns whether there was one, to be waited for."""
        with self._lock:
            self._is_recalled = True
            if self._interrupt is None:
                return False
            self._interrupt()
            return True
