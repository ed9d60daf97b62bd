"""Prefixes that clients asked to keep for a while (`cache_control` of /v1/messages): they are not evicted before.

Laws: all that is kept takes at most `max_pages` of the device's pool; no request is preempted for it, and none that has
nothing else to wait for waits for it. What gives way is what would end soonest. A prefix that is kept again is kept for
the longer of the two times.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagefall.cache.prefix_cache import HeldPrefix, PrefixCache
from pagefall.messages import TokenIds

MAX_PIN_SECONDS = 3600.0
"""Longer wishes are cut down to this."""


@dataclass(slots=True)
class _Pin:
    held: HeldPrefix
    expires_at: float


class Pins:
    """Owned by the scheduler. Time is passed in, in seconds of its clock."""

    def __init__(self, cache: PrefixCache, *, max_pages: int) -> None:
        self._cache = cache
        self._max_pages = max_pages
        self._pins: dict[bytes, _Pin] = {}
        self.num_pages = 0
        """Pages kept; one that several prefixes have in common counts for each."""

    def add(self, root: bytes, token_ids: TokenIds, *, seconds: float, now: float) -> None:
        """Keeps what is cached on the device of the whole pages of `token_ids`, which was computed just now."""
        held = self._cache.hold(root, token_ids)
        if held is None:
            return
        expires_at = now + min(seconds, MAX_PIN_SECONDS)
        former = self._pins.get(held.last_key)
        if former is not None:
            self._cache.let_go(held)
            former.expires_at = max(former.expires_at, expires_at)
            return
        self._pins[held.last_key] = _Pin(held, expires_at)
        self.num_pages += held.num_pages
        while self.num_pages > self._max_pages:
            self.give_way()

    def expire(self, now: float) -> None:
        """Ends what has been kept long enough. O(pins)."""
        for key in [key for key, pin in self._pins.items() if pin.expires_at <= now]:
            self._end(key)

    def give_way(self) -> bool:
        """Ends the one that would end soonest; False if there is none."""
        if not self._pins:
            return False
        self._end(min(self._pins, key=lambda key: self._pins[key].expires_at))
        return True

    def clear(self) -> None:
        """Ends all of them."""
        for key in list(self._pins):
            self._end(key)

    def _end(self, key: bytes) -> None:
        pin = self._pins.pop(key)
        self.num_pages -= pin.held.num_pages
        self._cache.let_go(pin.held)
