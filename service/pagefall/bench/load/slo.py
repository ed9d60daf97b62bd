"""What counts as good: limits that an answer has to keep."""

from __future__ import annotations

import math

import msgspec

from pagefall.bench.load.samples import RequestSample
from pagefall.errors import ConfigError


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds; None: none. `itl` is for the mean time per output token after the first.

    A request that was held back in an open loop has waited since it was due: `ttft` and `e2e` include that.
    """

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def is_met(self, sample: RequestSample) -> bool:
        """A failed request meets no limits."""
        if sample.ttft_seconds is None:
            return False
        delay = sample.delay_seconds
        pairs = (
            (sample.ttft_seconds + delay, self.ttft),
            (sample.tpot_seconds or 0.0, self.itl),
            (sample.e2e_seconds + delay, self.e2e),
        )
        return all(limit is None or value <= limit for value, limit in pairs)


def parse_slo(text: str) -> Slo:
    """`ttft=0.5,itl=0.05,e2e=10`, each of them once at most. Raises `ConfigError`."""
    limits: dict[str, float] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in Slo.__struct_fields__:
            raise ConfigError(f"--slo: {word.strip()!r} is not ttft=, itl= or e2e= and a number of seconds")
        if name in limits:
            raise ConfigError(f"--slo: {name} stands there twice")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ConfigError(f"--slo: {name}: {value!r} is not a number of seconds") from None
        if not 0 < limits[name] < math.inf:
            raise ConfigError(f"--slo: {name}: {value} is no limit; use more than 0 seconds")
    return Slo(**limits)
