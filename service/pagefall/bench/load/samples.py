"""What is known of a request when it is over, and of a run."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.bench.load.turns import Turn
from pagefall.errors import PagefallError
from pagefall.messages import Tier

FaultKind = Literal["cannot connect", "timeout", "status", "closed early", "error event", "not understood", "no output"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed. `status`: the HTTP status, where that is why."""

    kind: FaultKind
    message: str
    status: int | None = None

    @property
    def name(self) -> str:
        """What failures of this sort are counted under."""
        return self.kind if self.status is None else f"status {self.status}"


class RequestFailedError(PagefallError):
    """A request came to nothing, or broke off."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A streamed answer. `arrivals`, at least one, are the times, on the loop's clock, of all events with output.

    What the server does not tell is None.
    """

    sent_at: float
    arrivals: tuple[float, ...]
    ended_at: float
    text: str
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    cached_tokens: int | None = None
    cached_tokens_by_tier: dict[Tier, int] | None = None


class RequestSample(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are seconds from the start of its run.

    `due_at`: when an open loop wanted to send it. `num_prompt_tokens` and `num_output_tokens` are the server's counts;
    where it reports no usage, the length aimed at and the number of events. `num_seen_tokens`: how many tokens of its
    prompt's head had been sent before, which a cache that never forgets would have. `gaps_seconds` lie between events
    with output. Of a failed request `ttft_seconds` is None and there are no gaps.
    """

    part: str
    is_measured: bool
    due_at: float | None
    sent_at: float
    ended_at: float
    ttft_seconds: float | None
    gaps_seconds: tuple[float, ...]
    num_prompt_tokens: int
    num_seen_tokens: int
    num_output_tokens: int
    cached_tokens: int | None
    cached_tokens_by_tier: dict[Tier, int] | None
    fault: Fault | None

    @property
    def e2e_seconds(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def delay_seconds(self) -> float:
        """How long after its time it was sent, for lack of a free place or of an answer that it waits for."""
        return 0.0 if self.due_at is None else max(0.0, self.sent_at - self.due_at)

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None for answers of one token."""
        if not self.gaps_seconds or self.num_output_tokens < 2:
            return None
        return sum(self.gaps_seconds) / (self.num_output_tokens - 1)


class LoopLag(msgspec.Struct, frozen=True, kw_only=True):
    """How late this program's own loop woke up: what its times may be wrong by."""

    p50_seconds: float
    p99_seconds: float
    max_seconds: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One workload, once, on one server; samples in the order of their ends. `seconds`: until the last end.

    `note`: why it ended before its time; None: it did not.
    """

    target: str
    repeat: int
    seconds: float
    samples: tuple[RequestSample, ...]
    lag: LoopLag | None = None
    note: str | None = None

    @property
    def measured(self) -> tuple[RequestSample, ...]:
        return tuple(sample for sample in self.samples if sample.is_measured)


def answered(
    turn: Turn,
    answer: Answer,
    *,
    num_seen_tokens: int,
    num_template_tokens: int,
    started_at: float,
    due_at: float | None,
) -> RequestSample:
    """`num_seen_tokens` is of the lengths aimed at; the sample has it in the server's measure.

    What a chat's template adds, `num_template_tokens`, is the same in every prompt and counts as seen.
    """
    aimed_at = turn.num_tokens
    if answer.num_prompt_tokens is None:
        num_prompt_tokens, num_seen = aimed_at, num_seen_tokens
    else:
        num_prompt_tokens = answer.num_prompt_tokens
        own_tokens = max(0, num_prompt_tokens - num_template_tokens)
        num_seen = num_template_tokens + (round(num_seen_tokens * own_tokens / aimed_at) if aimed_at else 0)
    return RequestSample(
        part=turn.part,
        is_measured=turn.is_measured,
        due_at=due_at,
        sent_at=answer.sent_at - started_at,
        ended_at=answer.ended_at - started_at,
        ttft_seconds=answer.arrivals[0] - answer.sent_at,
        gaps_seconds=tuple(after - before for before, after in zip(answer.arrivals, answer.arrivals[1:], strict=False)),
        num_prompt_tokens=num_prompt_tokens,
        num_seen_tokens=max(0, min(num_seen, num_prompt_tokens - 1)),
        num_output_tokens=len(answer.arrivals) if answer.num_output_tokens is None else answer.num_output_tokens,
        cached_tokens=answer.cached_tokens,
        cached_tokens_by_tier=answer.cached_tokens_by_tier,
        fault=None,
    )


def failed(turn: Turn, fault: Fault, *, sent_at: float, ended_at: float, due_at: float | None) -> RequestSample:
    """`sent_at` and `ended_at` count from the start of the run."""
    return RequestSample(
        part=turn.part,
        is_measured=turn.is_measured,
        due_at=due_at,
        sent_at=sent_at,
        ended_at=ended_at,
        ttft_seconds=None,
        gaps_seconds=(),
        num_prompt_tokens=turn.num_tokens,
        num_seen_tokens=0,
        num_output_tokens=0,
        cached_tokens=None,
        cached_tokens_by_tier=None,
        fault=fault,
    )
