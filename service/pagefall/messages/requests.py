"""Requests and steps: between HTTP, the scheduler and the model runner."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.messages.explanations import PrefixReport
from pagefall.messages.ids import FinishReason, PageIds, RequestId, Tier, TokenIds


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
    grammar: str | None = None
    """What the answer must look like, as a grammar that was found to compile; see `model.constrained`."""


class StopParams(msgspec.Struct, frozen=True, kw_only=True):
    """When generation ends. Stop *strings* are the tokenizer's business: it sends `Cancel(reason="stop")`.

    `stop_token_ids` already holds the model's end-of-sequence ids unless the request said `ignore_eos`.
    """

    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()


class Submit(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request: `1 <= len(token_ids)` and `len(token_ids) + stop.max_tokens <= context_length`.

    `stop.max_tokens` 0: the prompt is computed and cached, nothing is sampled.
    """

    request_id: RequestId
    token_ids: TokenIds
    sampling: SamplingParams
    stop: StopParams
    cache_salt: str = ""
    pins: tuple[tuple[int, float], ...] = ()
    """Prefixes of the prompt that are to be kept: tokens, and for how many seconds."""
    priority: int = 0
    """Higher runs first among waiting requests."""
    wants_prompt_logprobs: bool = False
    """Whether log-probabilities are wanted of the prompt's tokens too, which is then computed anew, cached or not."""


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


class DescribeCache(msgspec.Struct, frozen=True, kw_only=True):
    """Asks what the radix tree looks like. Answered by `CacheDescribed` with the same `query_id`."""

    query_id: int
    max_branches: int = 40


class TokenLogprob(msgspec.Struct, frozen=True):
    """Natural-log probability of the chosen token under the model (before temperature and truncation), and the
    `num_top_logprobs` most likely ones in falling order.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class ScoredTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a prompt that the model is asked about, in order, and how many of the most likely ones are named."""

    token_ids: TokenIds
    num_top_logprobs: int


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
    scored: ScoredTokens | None = None
    """The tokens behind `token_ids[start]`, `token_ids[start + 1]`, ... whose log-probabilities are wanted."""


class StepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One forward over a mix of prefill chunks and decodes. `ended`: requests the runner may forget."""

    step: int
    sequences: tuple[SequenceStep, ...]
    ended: tuple[RequestId, ...] = ()


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """`sampled[i]` belongs to `plan.sequences[i]`; None where nothing was to be sampled, and where it `failed`."""

    step: int
    sampled: tuple[TokenLogprob | None, ...]
    forward_seconds: float
    sample_seconds: float
    failed: frozenset[RequestId] = frozenset()
    """Requests of this step whose answer cannot go on: they end with "abort"."""
    scores: tuple[tuple[TokenLogprob, ...], ...] = ()
    """`scores[i]` is of `plan.sequences[i].scored`, in its order; no entry at all where nothing was to be scored."""


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
    prefix: PrefixReport | None = None
    """On the first output of a request, whichever that is, and on no other."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt from its second token on, on the first output of a request that asked for them."""


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


class BranchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One branch of the radix tree: a node and all that is below it.

    `branch_id` is unique in one answer; `parent_id` is the nearest branch above it in the same answer. `head_token_ids`
    are the first tokens of the node's own span, 64 at most, which begins at token `start_token` of the sequence.
    Pages count the node and all below it; a page in two tiers counts in both, `num_stored_pages` as far as is known.
    """

    branch_id: int
    parent_id: int | None
    start_token: int
    num_own_tokens: int
    head_token_ids: tuple[int, ...]
    num_device_pages: int
    num_host_pages: int
    num_stored_pages: int
    num_nodes: int
    num_hits: int
    idle_seconds: float


class CacheDescribed(msgspec.Struct, frozen=True, kw_only=True):
    """The largest branches, parents before children. `num_nodes` were looked at; `is_complete`: these were all."""

    query_id: int
    branches: tuple[BranchFacts, ...]
    num_nodes: int
    is_complete: bool


class SnapshotKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Asks which pages are where. Answered by `KeysSnapshot` with the same `query_id`."""

    query_id: int


class KeysSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The names (`kv_events.NAME_BYTES` each) of the pages in each tier, as of KV event `number`."""

    query_id: int
    number: int
    device: bytes
    host: bytes
    storage: bytes
