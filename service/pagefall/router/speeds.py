"""How fast one worker is, learnt from the answers that pass through."""

from __future__ import annotations

from typing import Final

_WEIGHT: Final = 0.2
"""Of the newest sample, in an exponentially weighted mean."""

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
            self.seconds_per_output = _mixed(self.seconds_per_output, seconds / num_outputs)


def _mixed(known: float | None, sample: float) -> float:
    return sample if known is None else known + _WEIGHT * (sample - known)
