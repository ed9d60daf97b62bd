"""`usage`, the same in every answer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pagefall.api.choices import usages_of_prompts
from pagefall.messages import Tier
from pagefall.text.requests import Usage


class CachedTokensByTier(msgspec.Struct, frozen=True, kw_only=True):
    device: int = 0
    host: int = 0
    storage: int = 0


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cached_tokens_by_tier: CachedTokensByTier


class WireUsage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def wire_usage(usages: Iterable[Usage], *, n: int = 1) -> WireUsage:
    """The sum over an answer's prompts, each of which has `n` usages, one for each of its choices."""
    usages = usages_of_prompts(tuple(usages), n)
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)

    def cached(tier: Tier) -> int:
        return sum(usage.cached_tokens_by_tier.get(tier, 0) for usage in usages)

    return WireUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(usage.cached_tokens for usage in usages),
            cached_tokens_by_tier=CachedTokensByTier(
                device=cached("device"), host=cached("host"), storage=cached("storage")
            ),
        ),
    )
