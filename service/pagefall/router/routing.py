"""What a routing policy sees, and what it says: the contract between the policies and whoever forwards requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NewType, Protocol

import msgspec

from pagefall.messages import TokenIds

WorkerId = NewType("WorkerId", str)
"""Its base URL, as the operator wrote it, without a slash at the end."""

PolicyName = Literal["cache_aware", "round_robin", "random", "least_load", "consistent_hash"]


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to be forwarded. `token_ids` is None where the router could not tokenise it (another model, or a body
    it does not understand); `text` is then what stands for the prompt. `session_key`: what `consistent_hash` hashes,
    the client's `x-session-id`, else `user`, else the head of the prompt.
    """

    token_ids: TokenIds | None
    text: str
    cache_salt: str = ""
    session_key: str = ""
    max_tokens: int | None = None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that may be given requests now. What is outstanding was forwarded and has not ended.

    `num_outstanding_prefill_tokens`: prompt tokens, less what was expected of the cache, of requests whose first token
    has not come. `prefill_tokens_per_second` and `seconds_per_output` are learnt from its answers, None at first.
    """

    worker_id: WorkerId
    num_outstanding: int
    num_outstanding_prefill_tokens: int
    prefill_tokens_per_second: float | None = None
    seconds_per_output: float | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Where the request goes and why. `reason` is one line for people; the tokens expected of each tier, and the
    `expected_ttft_seconds`, are what the policy knows of them. `ranking`: every worker that was considered with its
    expected seconds, best first, for explanations.
    """

    worker_id: WorkerId
    reason: str
    num_prompt_tokens: int = 0
    num_device_tokens: int = 0
    num_host_tokens: int = 0
    num_storage_tokens: int = 0
    expected_ttft_seconds: float | None = None
    ranking: tuple[tuple[WorkerId, float], ...] = ()

    @property
    def num_cached_tokens(self) -> int:
        return self.num_device_tokens + self.num_host_tokens + self.num_storage_tokens


class Policy(Protocol):
    """Chooses. Called on the loop's thread, never awaited: a choice takes well below a millisecond."""

    def choose(self, request: RouteRequest, workers: Sequence[WorkerView]) -> Choice:
        """One of `workers`, of which there is at least one."""

    def sent(self, request: RouteRequest, choice: Choice) -> None:
        """The request was forwarded: what it computes will be in that worker's cache."""

    def removed(self, worker_id: WorkerId) -> None:
        """The worker is gone, or was restarted: nothing is known of its cache any more."""
