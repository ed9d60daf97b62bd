"""One request as its owner saw it, from its arrival to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pagefall.messages import FinishReason, PrefixReport, RequestId, TokenIds, TokenSource
from pagefall.text.requests import ChatPrompt, TextPrompt

RefusalReason = Literal["queue_full", "never_fits", "too_long", "bad_prompt", "shutting_down"]
"""`too_long`: prompt and answer pass the context. `bad_prompt`: the chat template refused it, it is empty, or
its constraint cannot be compiled."""

AbortReason = Literal["client_gone", "shutdown"]

PrefixSource = Literal["device", "host", "storage", "none"]
"""The farthest tier that a prompt's head came from: what its time to the first token has to be judged by."""


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Written by the traffic log alone. All times but `arrived_at` are seconds of the log's clock.

    `prompt` is as the client sent it, None where it sent token ids. `arrived_at` is Unix time, `began_at` the same
    moment on the clock, before the prompt was encoded. `first_token_at` and `last_token_at` are None until there is a
    token; `report` until the scheduler has settled the prompt, which is then or at the request's end. `ended_at` and
    `finish_reason` are None while the request lives; `abort_reason` says more of an abort.
    """

    request_id: RequestId
    prompt: ChatPrompt | TextPrompt | None
    token_ids: TokenIds
    cache_salt: str
    max_tokens: int
    arrived_at: float
    began_at: float
    http_request_id: str | None = None
    report: PrefixReport | None = None
    num_generated_tokens: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    finish_reason: FinishReason | None = None
    abort_reason: AbortReason | None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def ttft_seconds(self) -> float | None:
        """From its arrival, encoding and queueing included, to its first token."""
        return None if self.first_token_at is None else self.first_token_at - self.began_at

    @property
    def total_seconds(self) -> float | None:
        """From its arrival to its end."""
        return None if self.ended_at is None else self.ended_at - self.began_at

    @property
    def source(self) -> PrefixSource:
        """`none` before its prompt is settled, and where nothing came from the cache."""
        if self.report is None:
            return "none"
        return prefix_source(self.report.num_tokens_by_source)


def prefix_source(num_tokens_by_source: dict[TokenSource, int]) -> PrefixSource:
    """The farthest tier with any token in `num_tokens_by_source`."""
    if num_tokens_by_source.get("storage"):
        return "storage"
    if num_tokens_by_source.get("host"):
        return "host"
    return "device" if num_tokens_by_source.get("device") else "none"


class TrafficObserver(Protocol):
    """Hears of every request, on the loop's thread: none of these may take more than microseconds, or raise."""

    def refused(self, reason: RefusalReason) -> None:
        """A request was turned away; it has no record."""

    def accepted(self, record: RequestRecord) -> None:
        """It waits, or runs."""

    def settled(self, record: RequestRecord) -> None:
        """`record.report` is there now: once for each accepted request."""

    def progressed(self, record: RequestRecord, num_tokens: int, gap_seconds: float | None) -> None:
        """`num_tokens` new tokens (1 or more), `gap_seconds` after those before; None: these are the first."""

    def ended(self, record: RequestRecord) -> None:
        """Once for each accepted request, and the last that is heard of it."""
