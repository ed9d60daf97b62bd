"""The flags of `pagefall serve`, the one place where they are described. Names are SGLang's wherever it has one."""

from __future__ import annotations

from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.config import CacheConfig, HttpConfig, ModelConfig, SchedulerConfig

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
                Flag("host", "address to listen on; 0.0.0.0 is every IPv4 interface", "ADDRESS"),
                Flag("port", "TCP port to listen on; 0 picks a free one", minimum=0, maximum=65535),
                Flag("api-key", "ask every client for this bearer token", "KEY", environ="PAGEFALL_API_KEY"),
                Flag("log-level", "how much the log says"),
                Flag("max-body-bytes", "largest request body; larger ones are refused with 413", minimum=1),
                Flag(
                    "shutdown-grace-seconds",
                    "how long requests under way may go on after Ctrl-C or SIGTERM",
                    "SECONDS",
                    minimum=0,
                    maximum=86400,
                ),
            ),
        ),
    ),
    always_on=(
        Flag("enable-cache-report", "cached tokens stand in every usage"),
        Flag("enable-metrics", "Prometheus metrics are served at /metrics"),
    ),
    later=(
        "enable-hierarchical-cache",
        "hicache-",
        "kv-cache-dtype",
        "dp-size",
        "load-balance-method",
        "speculative-",
        "storage-",
        "tp-size",
    ),
)
