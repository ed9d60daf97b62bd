"""The validated configuration, one frozen part per owner. Parsing flags, files and environment lives in `cli/`."""

from __future__ import annotations

from typing import Literal

import msgspec

ToolCallParserName = Literal["auto", "hermes", "llama3", "qwen", "mistral", "pythonic", "qwen3-coder", "none"]
ReasoningParserName = Literal["auto", "deepseek-r1", "qwen3", "none"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
CompileMode = Literal["auto", "off", "on"]
SchedulePolicy = Literal["fcfs", "lpm"]
EvictionPolicyName = Literal["lru", "lfu", "slru", "fifo", "priority"]
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy = Literal["auto", "best_effort", "wait_complete", "timeout"]
IoBackend = Literal["kernel", "direct"]
MemLayout = Literal["page_first", "page_first_direct", "layer_first"]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`model_path` None serves the embedded model; else a folder, a `.gguf` file or a hub id."""

    model_path: str | None = None
    served_model_name: str | None = None
    tokenizer_path: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    device: Device = "auto"
    dtype: Dtype = "auto"
    context_length: int | None = None
    compile: CompileMode = "auto"
    chat_template: str | None = None
    tool_call_parser: ToolCallParserName = "auto"
    reasoning_parser: ReasoningParserName = "auto"


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`max_total_tokens` None: sized from `mem_fraction_static` (None: the device's default) of the free memory."""

    page_size: int = 16
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    radix_eviction_policy: EvictionPolicyName = "lru"
    disable_radix_cache: bool = False
    disable_answer_memory: bool = False
    """Whether a chat's prompt has the tokenizer's own tokens even where it has an answer of this server in it."""


class TierConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers below device memory. Without `enable_hierarchical_cache` there are none and the rest must be default.

    `hicache_size`: GB (10^9 bytes) of the host pool; None: `hicache_ratio` times the device pool.
    `hicache_storage_backend_extra_config` is a JSON object as text, the `@file` resolved.
    """

    enable_hierarchical_cache: bool = False
    hicache_ratio: float = 2.0
    hicache_size: float | None = None
    hicache_io_backend: IoBackend = "kernel"
    hicache_mem_layout: MemLayout = "page_first"
    hicache_write_policy: WritePolicy = "write_through"
    hicache_selective_hits: int = 2
    """`write_through_selective` copies a page down once so many requests have used it."""
    hicache_storage_backend: str | None = None
    hicache_storage_backend_extra_config: str | None = None
    hicache_storage_prefetch_policy: PrefetchPolicy = "auto"
    hicache_prefetch_threshold: int = 256
    """The store is asked only for prompts of which at least so many tokens are in no nearer tier."""
    hicache_prefetch_timeout_base: float = 1.0
    hicache_prefetch_timeout_per_ki_token: float = 0.25
    """`timeout`: seconds a request waits for the store, and more for each 1,024 tokens it wants from it."""
    hicache_storage_deadline: float = 5.0
    """Seconds one operation of the store may take before it counts as failed."""
    hicache_storage_required: bool = False
    """Whether a store that is down when the server starts is a failure."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`chunked_prefill_size` is the token budget of one step; `max_queued_requests` counts those not yet running."""

    max_running_requests: int = 64
    max_queued_requests: int = 1024
    chunked_prefill_size: int = 512
    schedule_policy: SchedulePolicy = "lpm"


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    admin_api_key: str | None = None
    """What all paths below `/cache/` ask for, in place of `api_key`; good for everything else too. Without it `api_key`
    opens all of them but `/cache/storage`.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_body_bytes: int = 32 * 1024 * 1024
    shutdown_grace_seconds: float = 30.0
    stream_keepalive_seconds: float = 0.0
    """A stream that is silent for so long sends a comment; 0: never."""
    cors_origins: str | None = None
    """Of pages that browsers let use the server: origins with commas between them, or "*"."""
    max_stored_responses: int = 10_000
    """Of /v1/responses; 0 keeps none."""
    max_stored_response_bytes: int = 256 * 1024 * 1024
    """Of all of them, each with the whole conversation that it answers."""
    stored_response_ttl: float = 86_400.0
    """Seconds after its last use."""


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`dp_size` workers behind a router in one command. All limits of the other parts are then each worker's own."""

    dp_size: int = 1
    load_balance_method: Literal["cache_aware", "round_robin", "least_load"] = "cache_aware"


class InsightConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the server tells of its traffic, and remembers of it.

    `explain_max_requests` 0: no request is remembered after its end, and no page's history. `redact_prompts`: no text
    of a prompt is shown or logged, only where it is. `request_log`: a file, or "-" for standard output.
    """

    disable_metrics: bool = False
    metrics_compat: Literal["none", "sglang"] = "none"
    metrics_window: float = 300.0
    """Seconds that the ready-made hit rate looks back."""
    explain_max_requests: int = 4096
    explain_max_tokens: int = 2_000_000
    """Prompt tokens of the requests remembered; the same limit holds for the tokens whose pages' history is kept."""
    redact_prompts: bool = False
    request_log: str | None = None


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    tiers: TierConfig = TierConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    http: HttpConfig = HttpConfig()
    insight: InsightConfig = InsightConfig()
    parallel: ParallelConfig = ParallelConfig()
