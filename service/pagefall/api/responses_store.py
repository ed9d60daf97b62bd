"""Responses that clients may continue or read again, for a while.

Laws: a client sees only those that were made with the key it sends; at most `max_responses` of at most `max_bytes`
together are kept, none longer than `ttl_seconds` after it was last used. What was used longest ago gives way.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final, NewType

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from pagefall.api.auth import sent_key
from pagefall.api.wire_responses import Response, WireItem

Owner = NewType("Owner", bytes)
"""Whose responses they are."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`items`: all that the response answers, those of earlier responses first."""

    response: Response
    items: tuple[WireItem, ...]


class _Entry(msgspec.Struct, kw_only=True):
    stored: StoredResponse
    num_bytes: int
    expires_at: float


OWNER_HEADER: Final = "x-pagefall-owner"
"""By which a router that sends its own key tells its clients apart. It divides what belongs to the key, and no more."""


def owner_of(scope: Scope) -> Owner:
    """Of requests that came with the same key. Those without one have a common owner."""
    owner = hashlib.sha256(sent_key(scope) or b"")
    if (client := Headers(scope=scope).get(OWNER_HEADER)) is not None:
        owner.update(b"\0" + client.encode("latin-1"))
    return Owner(owner.digest())


class ResponseStore:
    """May be used from several threads at once."""

    def __init__(
        self, *, max_responses: int, max_bytes: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._lock = Lock()
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[Owner, str], _Entry] = OrderedDict()
        """By last use, which is also the order in which they expire."""

    @property
    def is_open(self) -> bool:
        """Whether anything is ever kept."""
        return min(self._max_responses, self._max_bytes) > 0

    def keep(self, owner: Owner, stored: StoredResponse) -> None:
        """Others give way to it. One that is too large by itself is not kept."""
        num_bytes = len(msgspec.json.encode(stored))
        if num_bytes > self._max_bytes:
            return
        with self._lock:
            self._expire()
            entry = _Entry(stored=stored, num_bytes=num_bytes, expires_at=self._clock() + self._ttl_seconds)
            self._entries[owner, stored.response.id] = entry
            self._num_bytes += num_bytes
            while len(self._entries) > self._max_responses or self._num_bytes > self._max_bytes:
                self._forget(next(iter(self._entries)))

    def find(self, owner: Owner, response_id: str) -> StoredResponse | None:
        """None where there is none, or no longer, or it is another's. Counts as its use."""
        with self._lock:
            self._expire()
            entry = self._entries.get((owner, response_id))
            if entry is None:
                return None
            self._entries.move_to_end((owner, response_id))
            entry.expires_at = self._clock() + self._ttl_seconds
            return entry.stored

    def delete(self, owner: Owner, response_id: str) -> bool:
        """False where `find` would find nothing."""
        with self._lock:
            self._expire()
            if (owner, response_id) not in self._entries:
                return False
            self._forget((owner, response_id))
            return True

    def _expire(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).expires_at <= now:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: tuple[Owner, str]) -> None:
        self._num_bytes -= self._entries.pop(key).num_bytes
