"""Time that passes only when everyone is asleep."""

from __future__ import annotations

import asyncio


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0
        self._wake_ups: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        wake_up = self.now + seconds
        self._wake_ups.append(wake_up)
        try:
            while self.now < wake_up:
                for _ in range(20):  # let the others run until they sleep too
                    await asyncio.sleep(0)
                if min(self._wake_ups) == wake_up:
                    self.now = max(self.now, wake_up)
        finally:
            self._wake_ups.remove(wake_up)
