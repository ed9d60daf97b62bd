"""What `pagefall demo` shows, in which order, and how a document is pushed down a tier. Nothing here waits or asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from pagefall.errors import ConfigError
from pagefall.messages import Tier

Source = Literal["computed", "device", "host", "storage"]
"""Where most tokens of a prompt came from."""

Before = Literal["nothing", "fill_device", "fill_host", "restart"]
"""What happens before the prompt is sent: new prompts as large as that pool push out what was used before them."""


class DemoConfig(msgspec.Struct, frozen=True, kw_only=True):
    out: str = "demo-out"
    prompt_tokens: int = 3_500
    max_total_tokens: int = 6_144
    hicache_ratio: float = 2.0
    serve_flags: str = ""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `document` 0 is the first, 1 the new one; `wanted` is the source that the row is there to show."""

    name: str
    document: Literal[0, 1]
    wanted: Source
    before: Before = "nothing"


CASES: Final = (
    Case(name="cold", document=0, wanted="computed"),
    Case(name="same prompt again", document=0, wanted="device"),
    Case(name="a new document", document=1, wanted="computed"),
    Case(name="the first, from host", document=0, wanted="host", before="fill_device"),
    Case(name="the first, from storage", document=0, wanted="storage", before="fill_host"),
    Case(name="the first, after a restart", document=0, wanted="storage", before="restart"),
)
"""The new document and the fillers come after the first one's last use, so that it is the least recently used."""

_SLACK_TOKENS: Final = 128
"""Room for what is rounded to pages."""


def host_tokens(config: DemoConfig) -> int:
    return int(config.hicache_ratio * config.max_total_tokens)


def check_sizes(config: DemoConfig) -> None:
    """Raises `ConfigError` for pools in which the cases cannot come about."""
    needed = config.prompt_tokens + config.max_total_tokens + 2 * _SLACK_TOKENS
    if config.max_total_tokens < config.prompt_tokens + _SLACK_TOKENS:
        raise ConfigError(
            f"--max-total-tokens: {config.max_total_tokens} have no room for a prompt of {config.prompt_tokens}"
        )
    if host_tokens(config) < needed:
        raise ConfigError(
            f"--hicache-ratio: {config.hicache_ratio:g} makes a host pool of {host_tokens(config)} tokens, which "
            f"cannot keep the prompt while the device pool is filled with others; it takes {needed}"
        )


def fillers(before: Before, config: DemoConfig) -> tuple[int, ...]:
    """Lengths of the new prompts that push everything used before them out of a pool, each as long as the documents or
    shorter. The device is the smaller pool: what pushes a prompt out of host memory has pushed it off the device.
    """
    match before:
        case "nothing" | "restart":
            return ()
        case "fill_device":
            # The new document is part of what fills the device.
            num_tokens = max(0, config.max_total_tokens - config.prompt_tokens) + _SLACK_TOKENS
        case "fill_host":
            num_tokens = max(host_tokens(config), config.max_total_tokens) + _SLACK_TOKENS
    count = -(-num_tokens // config.prompt_tokens)
    return (-(-num_tokens // count),) * count


def lifetimes(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that one process serves, for each process in turn."""
    found: list[list[Case]] = [[]]
    for case in cases:
        if case.before == "restart":
            found.append([])
        found[-1].append(case)
    return found


def source(num_prompt_tokens: int, by_tier: dict[Tier, int]) -> Source:
    """Where most tokens of the prompt came from; of a tie, the nearest."""
    computed = num_prompt_tokens - sum(by_tier.values())
    shares: dict[Source, int] = {tier: by_tier.get(tier, 0) for tier in ("device", "host", "storage")}
    shares["computed"] = computed
    return max(shares, key=lambda name: shares[name])
