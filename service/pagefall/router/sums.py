"""Documents of several workers as one: what can be added up is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_SUMMED: Final = (
    "num_running",
    "num_queued",
    "num_prompt_tokens",
    "num_tokens_by_source",
    "num_known_tokens",
    "num_missed_tokens",
    "num_generated_tokens",
    "saved_seconds",
    "num_preemptions",
    "transfers",
)
_POOLS: Final = ("device", "host")
_CACHED: Final = ("device", "host", "storage")


def summed(values: Iterable[Any]) -> Any:
    """Numbers added up, mappings key by key; what is neither, or absent, is left out. None where nothing is left."""
    known = [value for value in values if isinstance(value, int | float | Mapping) and not isinstance(value, bool)]
    mappings = [value for value in known if isinstance(value, Mapping)]
    if mappings:
        names = dict.fromkeys(name for mapping in mappings for name in mapping)
        sums = {name: summed(mapping.get(name) for mapping in mappings) for name in names}
        return {name: value for name, value in sums.items() if value is not None}
    return sum(known) if known else None


def summed_stats(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of `/cache/stats`. A store may be the same one for several workers, so it is not added up."""
    answer: dict[str, Any] = {}
    for name in _SUMMED:
        total = summed(document.get(name) for document in documents)
        if total is not None:
            answer[name] = total
    tiers = [document["tiers"] for document in documents if isinstance(document.get("tiers"), Mapping)]
    answer["tiers"] = {pool: summed(tier.get(pool) for tier in tiers) for pool in _POOLS}
    by_source, num_prompt_tokens = answer.get("num_tokens_by_source"), answer.get("num_prompt_tokens")
    if isinstance(by_source, Mapping) and num_prompt_tokens:
        answer["hit_rate"] = sum(by_source.get(tier, 0) for tier in _CACHED) / num_prompt_tokens
    return answer
