"""When the requests of an open loop are due."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator


def arrival_times(request_rate: float, rng: random.Random, *, burstiness: float = 1.0) -> Iterator[float]:
    """Seconds from the start, without end, `request_rate` a second in the mean.

    Gaps are gamma-distributed with `burstiness` as shape: 1 is a Poisson process, less comes in bursts, more is more
    regular. The first request is due after the first gap.
    """
    scale = 1 / (request_rate * burstiness)
    return itertools.accumulate(rng.gammavariate(burstiness, scale) for _ in itertools.count())
