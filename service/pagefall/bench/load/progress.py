"""How a run is going, while it goes: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

import anyio
import numpy as np

from pagefall.bench.load.driver import Driver
from pagefall.bench.load.summary import caching

_TERMINAL_SECONDS: Final = 0.5
_FILE_SECONDS: Final = 10.0
_NUM_RECENT: Final = 200
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """Of one run at a time, on `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()

    async def follow(self, line: Callable[[], str]) -> None:
        """Writes `line()` again and again, until it is cancelled."""
        while True:
            await anyio.sleep(_TERMINAL_SECONDS if self._is_terminal else _FILE_SECONDS)
            self._write(f"{_CLEAR}{line()}" if self._is_terminal else f"{line()}\n")

    def say(self, line: str) -> None:
        """A line that stays."""
        self._write(f"{_CLEAR if self._is_terminal else ''}{line}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def progress_line(driver: Driver, *, heading: str, total: int | None, seconds: float) -> str:
    """`heading: 12/96 done, 8 running (5 streaming), 0 failed, 3.1 req/s, TTFT p50 210 ms, hit rate 61%, 4 s`.

    `seconds`: since the run began. TTFT and hit rate are of the last 200 answers.
    """
    samples = driver.samples
    good = [sample for sample in samples[-_NUM_RECENT:] if sample.fault is None]
    done = f"{len(samples)}" if total is None else f"{len(samples)}/{total}"
    words = [
        f"{done} done",
        f"{driver.num_running} running ({driver.num_streaming} streaming)",
        f"{sum(sample.fault is not None for sample in samples)} failed",
    ]
    if seconds > 0:
        words.append(f"{len(samples) / seconds:.3g} req/s")
    ttfts = [sample.ttft_seconds for sample in good if sample.ttft_seconds is not None]
    if ttfts:
        words.append(f"TTFT p50 {1000 * float(np.median(ttfts)):.0f} ms")
    rate = caching(good).hit_rate
    if rate is not None:
        words.append(f"hit rate {rate:.0%}")
    return f"{heading}: {', '.join(words)}, {seconds:.0f} s"
