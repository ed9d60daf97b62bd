"""What the HTTP layer needs of the engine, and nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from pagefall.actors.kv_log import KvEventLog
from pagefall.insight.explanation import Explanation
from pagefall.insight.records import RequestRecord
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import (
    CacheDescribed,
    CacheFlushed,
    ControllerStats,
    KeysSnapshot,
    SchedulerStats,
    Tier,
    TokenIds,
)
from pagefall.text.requests import GenerateRequest, ModelCard, Prompt, TextDelta


class Generation(Protocol):
    """One answer in the making: an async iterator that ends after the delta with a `finish_reason`."""

    def __aiter__(self) -> Generation: ...

    async def __anext__(self) -> TextDelta: ...

    async def aclose(self) -> None:
        """Gives the request up: it ends within one step. Does nothing once the answer is complete."""


class Engine(Protocol):
    @property
    def ready(self) -> bool:
        """Whether requests can be served now."""

    @property
    def model(self) -> ModelCard: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        """Returns once the scheduler has accepted the request. Cancelled before that, it withdraws the request.

        Raises `RequestError` for what only the engine can see: a prompt that is too long (naming `prompt` or
        `messages`), a template that refuses the messages, a full queue (503 with `retry_after_seconds`).
        """

    async def tokenize(self, prompt: Prompt) -> TokenIds:
        """Token ids of the prompt, off the loop's thread if it is long. Raises `RequestError` like `generate`."""

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of the ids, special tokens included."""

    async def flush_cache(self, tiers: Set[Tier] = frozenset({"device", "host"})) -> CacheFlushed:
        """Drops the cached pages of these tiers that no running request holds; with those of the device, the tokens of
        past answers. Raises `RequestError` (503) when too many flushes are under way.
        """

    async def attach_storage(self, backend: str, extra_config: Mapping[str, Any]) -> None:
        """Uses this store from now on, in place of the one there may be, which serves requests under way to their end.

        Only where there are lower tiers. Raises `RequestError`, with nothing changed: 400 naming `backend` or
        `extra_config`, 503 where the store does not answer, 409 while another change is under way. Cancelled, it may
        happen all the same.
        """

    async def detach_storage(self) -> None:
        """Uses no store from now on; does nothing where there is none. Raises `RequestError` as `attach_storage`."""

    async def describe_cache(self, *, max_branches: int) -> CacheDescribed:
        """The radix tree's largest branches. Raises `RequestError` (503) when too many ask at once."""

    async def snapshot_keys(self) -> KeysSnapshot:
        """Which pages are where now. Raises `RequestError` (503) when too many ask at once."""

    @property
    def kv_log(self) -> KvEventLog:
        """What enters and leaves the tiers."""

    @property
    def traffic(self) -> TrafficLog:
        """The requests that live, and the last ones that ended."""

    async def explain(self, record: RequestRecord) -> Explanation:
        """The record as it is now, in words and with its text, off the loop's thread. Raises `RequestError` (503) when
        too many ask at once.
        """

    def stats(self) -> SchedulerStats:
        """The latest snapshot; takes no lock and no time."""

    def controller_stats(self) -> ControllerStats | None:
        """What moved between the tiers so far; None without lower tiers."""
