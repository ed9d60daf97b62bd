"""How late this program itself is: no figure is more exact than the loop that takes it."""

from __future__ import annotations

from typing import Final

import anyio
import numpy as np

from pagefall.bench.load.samples import LoopLag

_INTERVAL_SECONDS: Final = 0.01


class LagMeter:
    """Sleeps for 10 ms again and again, and keeps by how much it overslept."""

    def __init__(self) -> None:
        self._lags: list[float] = []

    async def measure(self) -> None:
        """Until it is cancelled."""
        while True:
            due_at = anyio.current_time() + _INTERVAL_SECONDS
            await anyio.sleep_until(due_at)
            self.note(anyio.current_time() - due_at)

    def note(self, seconds: float) -> None:
        self._lags.append(max(0.0, seconds))

    def result(self) -> LoopLag | None:
        """None before the first measurement."""
        if not self._lags:
            return None
        p50, p99, most = np.percentile(self._lags, (50, 99, 100))
        return LoopLag(p50_seconds=float(p50), p99_seconds=float(p99), max_seconds=float(most))
