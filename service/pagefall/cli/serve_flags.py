"""The flags of `pagefall serve`, the one place where they are described. Names are SGLang's wherever it has one."""

from __future__ import annotations

from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.http_flags import cors_flag, http_flags
from pagefall.config import (
    CacheConfig,
    HttpConfig,
    InsightConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    TierConfig,
)

SERVE_FLAGS = FlagTable(
    program="pagefall serve",
    summary="Serve a model over the OpenAI API. Without --model-path it is the embedded SmolLM2-135M-Instruct.",
    command_flags=(Flag("config", "read flags from a TOML file; keys are flag names, flags given here win", "FILE"),),
    groups=(
        Group(
            "Model",
            "model",
            ModelConfig,
            (
                Flag("model-path", "a local folder, a .gguf file or a hub id; absent: the embedded model", "PATH"),
                Flag("served-model-name", "the name clients use; absent: made from the model path", "NAME"),
                Flag("tokenizer-path", "where the tokenizer lies, if not with the model", "PATH"),
                Flag("revision", "branch, tag or commit of a hub model", "REV"),
                Flag("trust-remote-code", "run the Python code that a model folder or hub model brings along"),
                Flag("device", "where the model runs; auto takes an accelerator when there is one"),
                Flag("dtype", "type of the weights and of the cached keys and values"),
                Flag("context-length", "most tokens of prompt plus answer; absent: what the model allows", minimum=2),
                Flag("compile", "run decoding as a torch script instead of in Python; auto does where torch can"),
                Flag("chat-template", "a Jinja template, or a file with one, in place of the model's own", "FILE|TEXT"),
                Flag("tool-call-parser", "how the model writes tool calls; auto reads it from the chat template"),
                Flag("reasoning-parser", "how the model marks its thoughts; auto reads it from the chat template"),
            ),
        ),
        Group(
            "Cache",
            "cache",
            CacheConfig,
            (
                Flag("page-size", "token slots in a page, the unit of caching", minimum=1, maximum=1024),
                Flag("max-total-tokens", "size of the device pool in tokens; absent: from free memory", minimum=1),
                Flag(
                    "mem-fraction-static",
                    "share of the device's memory for weights and pool; absent: the device's default",
                    above=0,
                    maximum=1,
                ),
                Flag("radix-eviction-policy", "which cached pages go first when the pool is full"),
                Flag("disable-radix-cache", "compute every prompt anew"),
                Flag(
                    "disable-answer-memory",
                    "let answers that come back in a chat have the tokenizer's tokens, not those that were sampled",
                ),
            ),
        ),
        Group(
            "Tiers",
            "tiers",
            TierConfig,
            (
                Flag("enable-hierarchical-cache", "keep pages in host memory too; the other flags here need it"),
                Flag("hicache-ratio", "size of the host pool as a multiple of the device pool", above=0),
                Flag(
                    "hicache-size", "size of the host pool in GB (10^9 bytes); wins over the ratio unless 0", minimum=0
                ),
                Flag("hicache-io-backend", "how a GPU copies pages; means nothing on other devices"),
                Flag("hicache-mem-layout", "accepted for SGLang's sake: host pages are page_first whatever it says"),
                Flag("hicache-write-policy", "when pages are copied down: at once, once reused, or on eviction"),
                Flag(
                    "hicache-selective-hits",
                    "requests that use a page before write_through_selective copies it",
                    minimum=1,
                ),
                Flag(
                    "hicache-storage-backend",
                    "the store under host memory: file, redis, s3, memory or an installed plug-in, or several as one, "
                    "nearest first: file,s3; absent: none. The folder of file is its "
                    '"path", PAGEFALL_STORAGE_DIR or SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR',
                    "NAME[,NAME]",
                ),
                Flag(
                    "hicache-storage-backend-extra-config",
                    'the store\'s settings, a JSON object; of several {"file": {...}, "s3": {...}}',
                    "JSON|@FILE",
                ),
                Flag("hicache-storage-prefetch-policy", "how long a request waits for the store; auto: while it gains"),
                Flag(
                    "hicache-prefetch-threshold",
                    "least tokens in no nearer tier for which the store is asked",
                    minimum=1,
                ),
                Flag("hicache-prefetch-timeout-base", "how long policy timeout waits at least", "SECONDS", minimum=0),
                Flag("hicache-prefetch-timeout-per-ki-token", "and longer for each 1,024 tokens", "SECONDS", minimum=0),
                Flag("hicache-storage-deadline", "when an operation of the store counts as failed", "SECONDS", above=0),
                Flag("hicache-storage-required", "do not start while the store is down; without it: start, and wait"),
            ),
        ),
        Group(
            "Scheduler",
            "scheduler",
            SchedulerConfig,
            (
                Flag("max-running-requests", "requests computed at the same time", minimum=1),
                Flag("max-queued-requests", "requests waiting for their turn; more are refused with 503", minimum=0),
                Flag("chunked-prefill-size", "token budget of one step: prefill chunks and decodes", minimum=1),
                Flag("schedule-policy", "who runs next: first come, or longest cached prefix (nobody starves)"),
            ),
        ),
        Group(
            "HTTP",
            "http",
            HttpConfig,
            (
                *http_flags(
                    admin_key_help="the token that all paths below /cache/ and flushing the store ask for; without it "
                    "--api-key opens all but /cache/storage",
                ),
                Flag("max-stored-responses", "how many answers of /v1/responses are kept; 0: none", minimum=0),
                Flag("max-stored-response-bytes", "and how large all of them are, with their conversations", minimum=0),
                Flag(
                    "stored-response-ttl",
                    "how long after its last use a response is kept",
                    "SECONDS",
                    above=0,
                    maximum=2592000,
                ),
                Flag(
                    "stream-keepalive-seconds",
                    "silence after which a stream sends a comment, so that proxies keep it open; 0: never",
                    "SECONDS",
                    minimum=0,
                    maximum=86400,
                ),
                cors_flag(listener="server"),
            ),
        ),
        Group(
            "Data parallelism",
            "parallel",
            ParallelConfig,
            (
                Flag("dp-size", "workers behind one router and one port, each with the model", minimum=1, maximum=64),
                Flag("load-balance-method", "which worker gets a request, with --dp-size above 1"),
            ),
        ),
        Group(
            "Insight",
            "insight",
            InsightConfig,
            (
                Flag("disable-metrics", "do not serve /metrics"),
                Flag("metrics-compat", "also serve the metrics under the names of another engine"),
                Flag(
                    "metrics-window",
                    "how far the ready-made hit rate and the console's figures look back",
                    "SECONDS",
                    minimum=1,
                ),
                Flag(
                    "explain-max-requests",
                    "ended requests that are remembered and can be explained; 0: none",
                    minimum=0,
                ),
                Flag("explain-max-tokens", "most prompt tokens of these, and of the pages' history", minimum=0),
                Flag("redact-prompts", "show and log no text of prompts, only where in them something is"),
                Flag("request-log", "write a line of JSON for each request; - is standard output", "FILE|-"),
            ),
        ),
    ),
    always_on=(
        Flag("enable-cache-report", "cached tokens stand in every usage"),
        Flag("enable-metrics", "Prometheus metrics are served at /metrics, unless --disable-metrics"),
    ),
    later=(
        "disable-hicache-numa-detect",
        "enable-lmcache",
        "kv-cache-dtype",
        "speculative-",
        "storage-",
        "tp-size",
    ),
)
