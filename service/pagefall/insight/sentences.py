"""What is said of a run of missed pages, and what is advised."""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from pagefall.messages import MissedPages, Tier

_MINUTE: Final = 60.0
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

_TIER_NAMES: Final[dict[Tier, str]] = {"device": "device memory", "host": "host memory", "storage": "the store"}

_MORE_ROOM: Final[dict[Tier, str]] = {
    "device": "Give the device pool more room (--mem-fraction-static, --max-total-tokens), or catch what it drops in "
    "host memory: --enable-hierarchical-cache.",
    "host": "Give the host pool more room (--hicache-size, --hicache-ratio), or put a store below it: "
    "--hicache-storage-backend.",
    "storage": "Give the store more room: its quota, max_bytes, or what the store itself allows.",
}


class Sentences(msgspec.Struct, frozen=True):
    """`advice` is None where nothing can be, or need be, done."""

    explanation: str
    advice: str | None = None


def sentences(miss: MissedPages, *, where: str | None, is_same_text: bool) -> Sentences:
    """`where`: the point at which the prompt left the known path, to go after other words; None if it did not.
    `is_same_text`: the text goes on as that of the path, in other tokens.
    """
    match miss.reason:
        case "never_seen":
            return Sentences("new text: no prompt that is remembered went on like this")
        case "diverged" if is_same_text:
            return Sentences(
                f"the text goes on as before, but is cut into other tokens{where or ''}",
                "An answer that comes back in a prompt is encoded anew, and may be cut otherwise than it was written.",
            )
        case "diverged":
            return Sentences(
                f"the prompt left the known path{'' if where is None else where}; nothing after that can be reused",
                "If what differs there is a time, an id or a name, put it behind everything that stays the same.",
            )
        case "evicted":
            return _evicted(miss)
        case "other_salt":
            return Sentences(
                "cached under another cache_salt, which shares nothing with this one",
                "Send the same cache_salt from clients that may share a cache.",
            )
        case "other_namespace":
            return Sentences(
                f"the store has it from another model, or from the same with other settings{_detail(miss)}",
                "pagefall cache diff names the setting that differs.",
            )
        case "page_tail":
            return Sentences("the page with the prompt's last token: that one is always computed")
        case "below_threshold":
            return Sentences(
                "too few tokens to ask the store for them",
                "Lower --hicache-prefetch-threshold if the store is quick.",
            )
        case "slower_than_recompute":
            return _slower(miss)
        case "timed_out":
            return Sentences(
                f"the store did not answer or deliver in time{_detail(miss)}",
                "See the store's latency at /metrics. How long is waited: --hicache-storage-prefetch-policy, "
                "--hicache-prefetch-timeout-base, --hicache-storage-deadline.",
            )
        case "store_down":
            return Sentences(
                f"the store failed, or was not asked because it had failed before{_detail(miss)}",
                "See /cache/storage and the log for what is wrong with the store; it is used again once it answers.",
            )
        case "corrupt":
            return Sentences(
                f"what the store had was damaged, or another page's{_detail(miss)}",
                "pagefall cache verify --delete finds damaged values and removes them.",
            )
        case "no_room":
            return Sentences(
                "the host pool had no free page to read it into",
                "Give the host pool more room: --hicache-size or --hicache-ratio.",
            )
        case "copy_failed":
            return Sentences(f"copying it to the device failed{_detail(miss)}", "See the server's log.")
        case "cache_disabled":
            return Sentences("the server runs with --disable-radix-cache", "Start it without that flag.")
        case "scored":
            return Sentences(
                "the request wants the log-probabilities of its prompt, for which all of it is computed",
                "Leave out echo or logprobs.",
            )
        case "unreached":
            return Sentences("the request ended before it came to these")
        case _:
            assert_never(miss.reason)


def _evicted(miss: MissedPages) -> Sentences:
    place = "the cache" if miss.tier is None else _TIER_NAMES[miss.tier]
    ago = "" if miss.seconds_ago is None else f" {duration(miss.seconds_ago)} earlier"
    match miss.cause:
        case "pool_full" | None:
            because = "" if miss.cause is None else " because it was full"
            return Sentences(
                f"evicted from {place}{ago}{because}", None if miss.tier is None else _MORE_ROOM[miss.tier]
            )
        case "flushed":
            return Sentences(f"dropped from {place}{ago} by a flush of the cache")
        case "gone_from_store":
            known = "" if miss.seconds_ago is None else f"; last heard of {duration(miss.seconds_ago)} earlier"
            return Sentences(
                f"the store had it, and does not have it any more{known}",
                "Something deletes there: the store's quota or age limit, or another program. Give it more room.",
            )
        case _:
            assert_never(miss.cause)


def _slower(miss: MissedPages) -> Sentences:
    if miss.load_seconds is None or miss.compute_seconds is None:
        return Sentences("computing it was quicker than loading it")
    return Sentences(
        f"loading it would have taken {duration(miss.load_seconds)}, computing it {duration(miss.compute_seconds)}"
    )


def _detail(miss: MissedPages) -> str:
    return "" if miss.detail is None else f": {miss.detail}"


def duration(seconds: float) -> str:
    """In the unit that reads best: `0.4 ms`, `1.9 s`, `42 s`, `5 min`, `3 h`, `4 days`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.0f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.0f} days"
