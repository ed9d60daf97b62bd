"""Uniform numbers by counter, not by state: draw `n` of a seed is the same whenever and beside whatever it is drawn.

Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), over a whole batch
at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint32]


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """One number of [0, 1) per entry, with 53 random bits. `seeds` and `positions` `[num_rows]`."""
    zeros = np.zeros_like(positions)
    key = ((seeds & _LOW).astype(np.uint32), (seeds >> _HALF).astype(np.uint32))
    high, low, *_ = philox((positions, zeros, zeros, zeros), key)
    return ((high >> 5) * 67108864.0 + (low >> 6)) / 9007199254740992.0


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four random words for every entry, from four words of counter and two of key."""
    first, second, third, fourth = counter
    left, right = key
    for _ in range(10):
        one, two = _MULTIPLIERS[0] * first, _MULTIPLIERS[1] * third
        first, second, third, fourth = (
            (two >> _HALF).astype(np.uint32) ^ second ^ left,
            (two & _LOW).astype(np.uint32),
            (one >> _HALF).astype(np.uint32) ^ fourth ^ right,
            (one & _LOW).astype(np.uint32),
        )
        left, right = left + _KEY_STEPS[0], right + _KEY_STEPS[1]
    return first, second, third, fourth
