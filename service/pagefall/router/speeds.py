"""How fast one worker is, learnt from the answers that pass through."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.2
"""Of the newest sample, in an exponentially weighted mean."""

_WEIGHT_UP: Final = 0.02
"""Of a sample that is slower, for answers: prompts that are read beside an answer slow it down, and count as what is
ahead already. Counted twice they would make a short queue look worse than computing a prefix anew: what is learnt stays
near the quick ones.
"""

_MIN_PREFILL_TOKENS: Final = 64
"""Fewer say how long a request takes at all, not how fast a prompt is read."""


class MeasuredSpeeds:
    """None until there is something to say."""

    def __init__(self) -> None:
        self.prefill_tokens_per_second: float | None = None
        self.seconds_per_output: float | None = None

    def first_token(self, *, num_tokens: int, seconds: float) -> None:
        """`num_tokens` of prompts, of requests before it too, had to be computed until a first token came."""
        if num_tokens >= _MIN_PREFILL_TOKENS and seconds > 0:
            self.prefill_tokens_per_second = _mixed(self.prefill_tokens_per_second, num_tokens / seconds)

    def outputs(self, *, num_outputs: int, seconds: float) -> None:
        """`num_outputs` tokens of one answer came in `seconds`, after its first."""
        if num_outputs > 0 and seconds > 0:
            sample, known = seconds / num_outputs, self.seconds_per_output
            weight = _WEIGHT_UP if known is not None and sample > known else _WEIGHT
            self.seconds_per_output = _mixed(known, sample, weight)


def _mixed(known: float | None, sample: float, weight: float = _WEIGHT) -> float:
    return sample if known is None else known + weight * (sample - known)
