"""`--request-log`: a line of JSON for each request that was forwarded or refused, when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from pagefall.insight.line_writer import LineWriter, refuse_unwritable
from pagefall.router.decisions import Decision
from pagefall.router.workers import Outcome

_CAPACITY: Final = 4096
"""Lines that may wait for the disk."""


class LostLines(msgspec.Struct, frozen=True, tag_field="event", tag="lost"):
    """So many lines are not there: too many waited, or the disk failed."""

    time: float
    num_lines: int


class RequestLog:
    """A `DecisionObserver`: the lines are `Decision`s, without text of prompts, which they never have."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` where the file cannot be opened."""
        self._lines = LineWriter[Decision](
            path, msgspec.json.encode, _lost, thread_name="request-log", capacity=_CAPACITY
        )

    def retried(self, reason: Outcome) -> None: ...

    def ended(self, decision: Decision) -> None:
        self._lines.put(decision)

    def close(self) -> None:
        self._lines.close()


@contextmanager
def request_log(path: str | None) -> Iterator[Sequence[RequestLog]]:
    """What waits is written at the end. Raises `ConfigError` for a file that cannot be opened."""
    if path is None:
        yield ()
        return
    try:
        log = RequestLog(path)
    except OSError as error:
        raise refuse_unwritable(path, error, "--request-log") from error
    try:
        yield (log,)
    finally:
        log.close()


def _lost(num_lines: int) -> bytes:
    return msgspec.json.encode(LostLines(round(time.time(), 3), num_lines))
