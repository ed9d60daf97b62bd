"""The flags of `pagefall doctor` and `pagefall doctor prompts`."""

from __future__ import annotations

from typing import Final

import msgspec

from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.config import ModelConfig


class DoctorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which server, and how much of its traffic: the `last` requests, those of the last `seconds`, or all it knows."""

    url: str = "http://127.0.0.1:30000"
    api_key: str | None = None
    last: int | None = None
    seconds: float | None = None
    json: bool = False


class PromptsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens; None: no such tier. `max_tokens`: of the prompts that are looked at, the last ones."""

    page_size: int = 16
    device_tokens: int | None = None
    host_tokens: int | None = None
    storage_tokens: int | None = None
    max_tokens: int = 20_000_000
    skip_bad: bool = False
    redact_prompts: bool = False
    json: bool = False


class PromptsCommand(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig
    prompts: PromptsConfig


DOCTOR_FLAGS: Final = FlagTable(
    program="pagefall doctor",
    summary="Say why a running server's hit rate is what it is, and what to do about it. "
    "`pagefall doctor prompts FILE` does so for a log of requests, without a server.",
    groups=(
        Group(
            "Server",
            "",
            DoctorConfig,
            (
                Flag("url", "the server, with or without /v1", "URL"),
                Flag("api-key", "bearer token", "KEY", environ="PAGEFALL_API_KEY"),
                Flag("last", "look at so many requests; absent: at all that the server remembers", minimum=1),
                Flag("seconds", "look at the requests of so many seconds", "SECONDS", above=0),
                Flag("json", "print the diagnosis as JSON"),
            ),
        ),
    ),
)

PROMPTS_FLAGS: Final = FlagTable(
    program="pagefall doctor prompts FILE.jsonl",
    summary="Say what hit rate a log of requests could have, and what stands in the way. A line is the body of an "
    'OpenAI request, of a batch file ({"body": ...}), or of Pagefall\'s request log; beside it "time", "worker" and '
    '"cache_salt". FILE may be - for standard input. No server and no weights are needed, only the tokenizer.',
    groups=(
        Group(
            "Tokenizer",
            "model",
            ModelConfig,
            (
                Flag("tokenizer-path", "a folder or a hub id; absent: the model's", "PATH"),
                Flag("model-path", "a folder, a .gguf file or a hub id; absent: the embedded model", "PATH"),
                Flag("revision", "branch, tag or commit of a hub model", "REV"),
                Flag("trust-remote-code", "run the Python code that a model brings along"),
                Flag("chat-template", "Jinja text in place of the model's own template", "TEXT"),
            ),
        ),
        Group(
            "Diagnosis",
            "prompts",
            PromptsConfig,
            (
                Flag("page-size", "token slots in a page, the unit of caching", minimum=1, maximum=1024),
                Flag("device-tokens", "size of the device tier, of each worker; absent: not looked at", minimum=1),
                Flag("host-tokens", "size of the host tier", minimum=1),
                Flag("storage-tokens", "size of the store", minimum=1),
                Flag(
                    "max-tokens",
                    "look at the last requests that have so many tokens: memory is about 10 bytes for each",
                    minimum=1,
                ),
                Flag("skip-bad", "go on after lines that cannot be used, and say how many there were"),
                Flag("redact-prompts", "show no text of prompts, only where in them something is"),
                Flag("json", "print the diagnosis as JSON"),
            ),
        ),
    ),
)
