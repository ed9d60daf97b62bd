"""What computing and loading cost, learnt from what they did cost.

Prefill: a step takes `fixed + per_token * tokens + per_context * tokens * position + per_answer * answers` seconds,
fitted by least squares that forget (a step counts half after 35 others). Links: a transfer takes at least as long as
the first bytes took, and otherwise its bytes at the pace of the latest transfers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pagefall.messages import SequenceStep, StepPlan, StepResult

_FORGETTING: Final = 0.98
_SMOOTHING: Final = 0.3
_RIDGE: Final = 1e-3
_KILO: Final = 1024.0


class PrefillCost:
    """Seconds of prefill as a function of length and position."""

    def __init__(self) -> None:
        self._gram = np.zeros((4, 4))
        self._moments = np.zeros(4)
        self._num_tokens = 0.0
        self._seconds = 0.0
        self._weights: tuple[float, float, float, float] | None = None

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Learns from a step; one of answers alone says nothing about prefill and is left out."""
        chunks = [sequence for sequence in plan.sequences if len(sequence.token_ids) - sequence.start > 1]
        if not chunks:
            return
        num_tokens = sum(len(chunk.token_ids) - chunk.start for chunk in chunks) / _KILO
        contexts = sum(_context(chunk) for chunk in chunks)
        features = np.array([1.0, num_tokens, contexts, float(len(plan.sequences) - len(chunks))])
        seconds = result.forward_seconds + result.sample_seconds
        self._gram = _FORGETTING * self._gram + np.outer(features, features)
        self._moments = _FORGETTING * self._moments + features * seconds
        self._num_tokens = _FORGETTING * self._num_tokens + num_tokens
        self._seconds = _FORGETTING * self._seconds + seconds
        self._weights = None

    def estimate(self, start: int, num_tokens: int, *, chunk_size: int) -> float | None:
        """Seconds to compute positions `[start, start + num_tokens)` in chunks; None before anything was observed."""
        if not self._num_tokens:
            return None
        fixed, per_token, per_context, _ = self._weights or self._fit()
        num_steps = -(-num_tokens // chunk_size)
        kilo = num_tokens / _KILO
        return num_steps * fixed + kilo * per_token + kilo * (start + num_tokens / 2) / _KILO * per_context

    def _fit(self) -> tuple[float, float, float, float]:
        """Ridge regression towards a constant pace, with no weight below zero."""
        prior = np.array([0.0, self._seconds / self._num_tokens, 0.0, 0.0])
        scale = _RIDGE * max(1.0, float(np.trace(self._gram)))
        solved = prior + np.linalg.solve(self._gram + scale * np.eye(4), self._moments - self._gram @ prior)
        fixed, per_token, per_context, per_answer = np.maximum(solved, 0.0).tolist()
        self._weights = (fixed, per_token, per_context, per_answer)
        return self._weights


class LinkSpeed:
    """A tier's latency and bandwidth in one direction, as moving averages."""

    def __init__(self, *, first_seconds: float, bytes_per_second: float) -> None:
        """Until something was measured these are believed: an optimist's values, so that it is tried."""
        self._first_seconds = first_seconds
        self._seconds_per_byte = 1.0 / bytes_per_second
        self._is_measured = False

    def observe(self, *, first_seconds: float, seconds: float, num_bytes: int) -> None:
        """`num_bytes` took `seconds`, the first of them `first_seconds`."""
        if num_bytes <= 0:
            return
        weight = _SMOOTHING if self._is_measured else 1.0
        self._first_seconds += weight * (first_seconds - self._first_seconds)
        self._seconds_per_byte += weight * (seconds / num_bytes - self._seconds_per_byte)
        self._is_measured = True

    def observe_latency(self, seconds: float) -> None:
        """Something without bytes took `seconds`: bytes will not come sooner."""
        if seconds > self._first_seconds:
            weight = _SMOOTHING if self._is_measured else 1.0
            self._first_seconds += weight * (seconds - self._first_seconds)

    def estimate(self, num_bytes: int) -> float:
        """Seconds until `num_bytes` have arrived."""
        return max(self._first_seconds, num_bytes * self._seconds_per_byte)


def _context(chunk: SequenceStep) -> float:
    stop = len(chunk.token_ids)
    return (stop - chunk.start) / _KILO * (stop + chunk.start) / 2 / _KILO
