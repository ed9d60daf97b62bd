"""What became of each request: where it was sent and why, and what was expected. The last ones are remembered."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

from pagefall.router.routing import Choice, WorkerId
from pagefall.router.workers import Outcome

_MAX_RANKED: Final = 16
"""Of a ranking, so many are remembered."""


class Attempt(msgspec.Struct, kw_only=True):
    """One worker that was asked. `began_seconds` counts from the request's arrival; `outcome` None: not over yet."""

    worker: str
    worker_id: WorkerId
    reason: str
    num_device_tokens: int
    num_host_tokens: int
    num_storage_tokens: int
    expected_ttft_seconds: float | None
    ranking: tuple[tuple[WorkerId, float], ...]
    began_seconds: float
    seconds: float | None = None
    outcome: Outcome | None = None
    detail: str | None = None


class Decision(msgspec.Struct, kw_only=True):
    """One request. Its owner writes to it until `is_ended`. `time` is its arrival, in Unix seconds.

    `is_tokenised` False: it was routed as text, and `num_prompt_tokens` is an estimate. `num_cached_tokens` is what
    the worker's answer said, None where it did not. `status` None: the client had left before there was one.
    """

    request_id: str
    time: float
    path: str
    policy: str
    model: str | None = None
    answer_id: str | None = None
    is_tokenised: bool = False
    num_prompt_tokens: int = 0
    num_expected_cached_tokens: int = 0
    num_cached_tokens: int | None = None
    num_generated_tokens: int | None = None
    queue_seconds: float = 0.0
    routing_seconds: float = 0.0
    attempts: list[Attempt] = []
    status: int | None = None
    ttft_seconds: float | None = None
    total_seconds: float | None = None
    refusal: str | None = None
    is_ended: bool = False

    @property
    def worker_id(self) -> WorkerId | None:
        """Who was asked last."""
        return self.attempts[-1].worker_id if self.attempts else None

    def begin(self, worker: str, choice: Choice, *, began_seconds: float) -> Attempt:
        attempt = Attempt(
            worker=worker,
            worker_id=choice.worker_id,
            reason=choice.reason,
            num_device_tokens=choice.num_device_tokens,
            num_host_tokens=choice.num_host_tokens,
            num_storage_tokens=choice.num_storage_tokens,
            expected_ttft_seconds=choice.expected_ttft_seconds,
            ranking=choice.ranking[:_MAX_RANKED],
            began_seconds=began_seconds,
        )
        self.attempts.append(attempt)
        self.num_prompt_tokens = choice.num_prompt_tokens
        self.num_expected_cached_tokens = choice.num_cached_tokens
        return attempt

    def summary(self) -> str:
        """For the log line of the request."""
        if not self.attempts:
            return "" if self.refusal is None else f" refused={self.refusal}"
        last = self.attempts[-1]
        words = [f" worker={last.worker}", f"expected={self.num_expected_cached_tokens}/{self.num_prompt_tokens}"]
        if self.num_cached_tokens is not None:
            words.append(f"cached={self.num_cached_tokens}")
        if self.ttft_seconds is not None:
            words.append(f"ttft={self.ttft_seconds * 1000:.1f}ms")
        if len(self.attempts) > 1:
            words.append(f"attempts={len(self.attempts)}")
        if last.outcome not in (None, "ok"):
            words.append(f"outcome={last.outcome}")
        return " ".join(words)


class DecisionLog:
    """The newest `capacity`, by `x-request-id` and by the answer's id. One id that came twice stands for the later."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_id: OrderedDict[str, Decision] = OrderedDict()
        self._by_answer: dict[str, Decision] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Decision]:
        """The newest first."""
        return reversed(self._by_id.values())

    def add(self, decision: Decision) -> None:
        if not self._capacity:
            return
        self._forget(decision.request_id)
        self._by_id[decision.request_id] = decision
        if len(self._by_id) > self._capacity:
            self._forget(next(iter(self._by_id)))

    def name_answer(self, decision: Decision, answer_id: str) -> None:
        decision.answer_id = answer_id
        if self._by_id.get(decision.request_id) is decision:
            self._by_answer[answer_id] = decision

    def get(self, wanted: str) -> Decision | None:
        return self._by_id.get(wanted) or self._by_answer.get(wanted)

    def _forget(self, request_id: str) -> None:
        old = self._by_id.pop(request_id, None)
        if old is not None and old.answer_id is not None and self._by_answer.get(old.answer_id) is old:
            del self._by_answer[old.answer_id]
