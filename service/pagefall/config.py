"""The validated configuration, one frozen part per owner. Parsing flags, files and environment lives in `cli/`."""

from __future__ import annotations

from typing import Literal

import msgspec

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
CompileMode = Literal["auto", "off", "on"]
SchedulePolicy = Literal["fcfs", "lpm"]
EvictionPolicyName = Literal["lru", "lfu", "slru", "fifo", "priority"]


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


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`max_total_tokens` None: sized from `mem_fraction_static` (None: the device's default) of the free memory."""

    page_size: int = 16
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    radix_eviction_policy: EvictionPolicyName = "lru"
    disable_radix_cache: bool = False


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
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_body_bytes: int = 32 * 1024 * 1024
    shutdown_grace_seconds: float = 30.0


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    http: HttpConfig = HttpConfig()
