"""Every message that crosses from one actor to another, and the value types inside them.

All are frozen. Arrays travel by reference inside the process: the sender never writes to the part it has sent.

    HTTP --Submit / Cancel--> scheduler --StepPlan--> model runner
     ^                           |  ^                     |
     +--- StepOutput (1 a step)--+  +---- StepResult -----+

    scheduler --Offload / LoadBack / Lookup / Fetch / Backup--> cache controller
        ^                                                             |
        +------ CopyDone / LookedUp / PagesFetched / BackedUp --------+

    HTTP --AttachStorage / DetachStorage--> scheduler --the same--> cache controller
     ^                                       |    ^                        |
     +------------- StorageChanged ----------+    +---- StorageChanged ----+
"""

from __future__ import annotations

from typing import Any, Literal, NewType

import msgspec
import numpy as np
import numpy.typing as npt

RequestId = NewType("RequestId", str)
"""Unique among live requests; the `id` of the HTTP answer."""

TokenIds = npt.NDArray[np.uint32]
"""Token ids, `[num_tokens]`."""

PageIds = npt.NDArray[np.int32]
"""Page numbers of one pool, the device's unless said otherwise, in the order of the sequence, `[num_pages]`."""

TransferId = NewType("TransferId", int)
"""Unique among all transfers of a process."""

FinishReason = Literal["stop", "length", "abort"]
Tier = Literal["device", "host", "storage"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Validated at the edge; the defaults are OpenAI's.

    `top_k`: 0 keeps all. `temperature` 0 is greedy. `repetition_penalty` (1 is off) looks at prompt and answer,
    `presence_penalty` and `frequency_penalty` (0 is off) at the answer alone. `seed` None draws one per request.
    `num_top_logprobs` None returns no logprobs; 0 returns the chosen token's alone.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    num_top_logprobs: int | None = None


class StopParams(msgspec.Struct, frozen=True, kw_only=True):
    """When generation ends. Stop *strings* are the tokenizer's business: it sends `Cancel(reason="stop")`.

    `stop_token_ids` already holds the model's end-of-sequence ids unless the request said `ignore_eos`.
    """

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request: `1 <= len(token_ids)` and `len(token_ids) + stop.max_tokens <= context_length`."""

    request_id: RequestId
    token_ids: TokenIds
    sampling: SamplingParams
    stop: StopParams
    cache_salt: str = ""
    priority: int = 0
    """Higher runs first among waiting requests."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a request within one step. Unknown ids are ignored: the request may have ended on its own.

    `stop`: a stop string was found, its pages are worth keeping. `abort`: the client is gone.
    """

    request_id: RequestId
    reason: Literal["stop", "abort"]


class FlushCache(msgspec.Struct, frozen=True, kw_only=True):
    """Drop every cached page of these tiers that nothing uses. Answered by `CacheFlushed` with the same `flush_id`.

    `storage` drops what this model's namespace has in the store; without a store there is nothing to drop.
    """

    flush_id: int
    tiers: frozenset[Tier] = frozenset({"device", "host"})


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probability of the chosen token under the model (before temperature and truncation), and the
    `num_top_logprobs` most likely ones in falling order.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SequenceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence's share of a step: compute positions `[start, len(token_ids))`.

    Keys and values of `[0, start)` are in `page_ids` already; those of the rest are written there by this step
    (page `i` holds positions `[i * page_size, (i + 1) * page_size)`). `sampling` None: a prefill chunk that is not
    the last one, nothing is sampled.
    """

    request_id: RequestId
    token_ids: TokenIds
    start: int
    page_ids: PageIds
    num_prompt_tokens: int
    """`token_ids[num_prompt_tokens:]` are this request's own answer so far (penalties and seeds count from there)."""
    sampling: SamplingParams | None


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One forward over a mix of prefill chunks and decodes. `ended`: requests the runner may forget."""

    step: int
    sequences: tuple[SequenceStep, ...]
    ended: tuple[RequestId, ...] = ()


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """`sampled[i]` belongs to `plan.sequences[i]`; None where nothing was to be sampled."""

    step: int
    sampled: tuple[TokenLogprob | None, ...]
    forward_seconds: float
    sample_seconds: float


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The request is queued: from here on it ends with a `finish_reason`, never with an error status."""

    request_id: RequestId


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The queue is full, or the whole pool (`num_pool_tokens`) has too few slots for the request. Nothing was kept."""

    request_id: RequestId
    num_queued: int
    reason: Literal["queue_full", "never_fits"] = "queue_full"
    num_pool_tokens: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one request. `cached_tokens` is set on the first output and never changes afterwards.

    With `finish_reason` "stop" the last of `token_ids`, if there are any, is the stop token.
    """

    request_id: RequestId
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    cached_tokens_by_tier: dict[Tier, int] = {}


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """All that one step made, in one message."""

    outputs: tuple[RequestOutput, ...]


class CacheFlushed(msgspec.Struct, frozen=True, kw_only=True):
    """`num_pages`: pages dropped of each tier that was asked for. A page in two tiers counts in both.

    `storage_error`: why the store was not cleared; None if it was, or was not asked to be.
    """

    flush_id: int
    num_pages: dict[Tier, int]
    storage_error: str | None = None


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """Copy pages from the device to the host pool, `device_page_ids[i]` to `host_page_ids[i]`. -> `CopyDone`"""

    transfer_id: TransferId
    device_page_ids: PageIds
    host_page_ids: PageIds


class LoadBack(msgspec.Struct, frozen=True, kw_only=True):
    """Copy pages from the host pool to the device, `host_page_ids[i]` to `device_page_ids[i]`. -> `CopyDone`"""

    transfer_id: TransferId
    host_page_ids: PageIds
    device_page_ids: PageIds


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the store how many leading `keys` (32 bytes each) it has. -> `LookedUp`"""

    transfer_id: TransferId
    keys: tuple[bytes, ...]


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Read pages from the store into the host pool, in the order given, and verify them.

    -> any number of `PagesFetched`, then one `FetchEnded`.
    """

    transfer_id: TransferId
    keys: tuple[bytes, ...]
    host_page_ids: PageIds


class StopFetch(msgspec.Struct, frozen=True, kw_only=True):
    """Begin no more reads for this `Fetch`, whose `FetchEnded` comes when the last one under way is over."""

    transfer_id: TransferId


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Write pages of the host pool to the store. -> `BackedUp`"""

    transfer_id: TransferId
    keys: tuple[bytes, ...]
    host_page_ids: PageIds


class ClearStorage(msgspec.Struct, frozen=True, kw_only=True):
    """Delete every value of this model's namespace. -> `StorageCleared`"""

    transfer_id: TransferId


class AttachStorage(msgspec.Struct, frozen=True, kw_only=True):
    """Use this store from now on, in place of the one that is attached, if any. -> `StorageChanged`

    `extra_config` is the backend's own. One change at a time: the next is asked for when the answer has come.
    """

    backend: str
    extra_config: dict[str, Any]


class DetachStorage(msgspec.Struct, frozen=True):
    """Use no store from now on. -> `StorageChanged`. One change at a time, as with `AttachStorage`."""


class CopyDone(msgspec.Struct, frozen=True, kw_only=True):
    """The copy is over: nothing reads or writes its pages any more.

    `error`: one line; what was to be written is undefined then. None: all pages were copied. `seconds` is the time of
    the copy alone, without waiting.
    """

    transfer_id: TransferId
    seconds: float
    error: str | None = None


StorageAnswer = Literal["answered", "timeout", "error", "breaker_open"]
"""Whether the store said something; with `breaker_open` it was not asked."""


class LookedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`num_present` is 0 unless the store answered."""

    transfer_id: TransferId
    num_present: int
    answer: StorageAnswer
    seconds: float


FetchOutcome = Literal["hit", "miss", "corrupt", "timeout", "error", "breaker_open"]


class PagesFetched(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some pages of a `Fetch`; each is reported at most once, and not touched afterwards.

    `indices[i]` is a position in `Fetch.keys`. Only a `hit` was verified and is the page.
    """

    transfer_id: TransferId
    indices: tuple[int, ...]
    outcomes: tuple[FetchOutcome, ...]


class FetchEnded(msgspec.Struct, frozen=True, kw_only=True):
    """No page of the `Fetch` is written any more; those never reported were not read.

    `first_seconds` from its start to the first report, `seconds` to its end, for `num_bytes` of hits.
    """

    transfer_id: TransferId
    num_bytes: int
    first_seconds: float
    seconds: float


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`stored[i]` belongs to `Backup.keys[i]`. Nothing reads its pages any more."""

    transfer_id: TransferId
    stored: tuple[bool, ...]


class StorageCleared(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: one line, why the store could not be cleared (some values may be gone all the same); else None."""

    transfer_id: TransferId
    num_pages: int
    error: str | None = None


class StorageChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the store before is still answered by the one that was attached then.

    `is_attached`: whether there is a store now. `error`: one line, why nothing has changed; else None. `param`: the
    field of `AttachStorage` that is at fault; None where the store is, which may be down.
    """

    is_attached: bool
    error: str | None = None
    param: Literal["backend", "extra_config"] | None = None


class PoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """`free + leased + cached == total` always; `pinned` is the part of `cached` that live requests read."""

    total: int
    free: int
    leased: int
    cached: int
    pinned: int


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the scheduler, published after every step and when idle. Counters only rise."""

    num_running: int
    num_queued: int
    device_pages: PoolStats
    host_pages: PoolStats | None = None
    """None without a host tier."""
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_device_tokens: int = 0
    num_host_tokens: int = 0
    num_storage_tokens: int = 0
    """The three add up to `num_cached_tokens`."""
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_evicted_pages: int = 0
    num_evicted_host_pages: int = 0
    num_lookups: int = 0
    num_fetched_pages: int = 0
    num_overtaken_pages: int = 0
    """Asked of the store, but computed before they came."""
    num_declined_fetches: int = 0
    """Fetches that would have taken far longer than computing."""
    num_skipped_offloads: int = 0
    num_skipped_backups: int = 0
    num_conservation_breaches: int = 0
    plan_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """What moved in one direction. `seconds` is the sum of the transfers' own times, though several may overlap."""

    num_pages: int = 0
    num_bytes: int = 0
    num_transfers: int = 0
    seconds: float = 0.0


Direction = Literal["device_to_host", "host_to_device", "host_to_storage", "storage_to_host"]
BreakerState = Literal["closed", "open", "half_open"]


class ControllerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the cache controller. `num_storage_outcomes` counts pages read by `FetchOutcome`, `corrupt` ones
    as `corrupt:<reason>`; `num_storage_failures` operations by "timeout", "error" and "full".
    """

    transfers: dict[Direction, TransferStats] = {}
    num_storage_outcomes: dict[str, int] = {}
    num_storage_failures: dict[str, int] = {}
    breaker: BreakerState | None = None
    storage_backend: str | None = None
    """The name of the store's backend."""
    storage_description: str | None = None
    """One line for people, without secrets. These three are None without a store."""


ControllerReport = CopyDone | LookedUp | PagesFetched | FetchEnded | BackedUp | StorageCleared | StorageChanged
StorageChange = AttachStorage | DetachStorage
ToController = Offload | LoadBack | Lookup | Fetch | StopFetch | Backup | ClearStorage | StorageChange
ToScheduler = Submit | Cancel | FlushCache | StorageChange | ControllerReport
FromScheduler = Accepted | Rejected | StepOutput | CacheFlushed | StorageChanged
