"""What was cached once: for telling why a page is not cached now. It decides nothing, and may forget anything.

Laws: memory is bounded by `max_pages` and `max_tokens`, whatever happens; a page that is cached has no fate here; what
is said is right for all that is remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from pagefall.cache.changes import KEY_BYTES, TierChange
from pagefall.messages import EvictionCause, RequestId, Tier, TokenIds

V = TypeVar("V")

PageName = int
"""The first eight bytes of a page key: enough to tell the pages of one server's memory apart."""

_NO_TOKENS: Final[TokenIds] = np.empty(0, dtype=np.uint32)


class Evicted(NamedTuple):
    """When and why the last copy went, and where that was. `is_stored`: the store had it then."""

    tier: Tier
    at: float
    cause: EvictionCause
    is_stored: bool


@dataclass(slots=True, eq=False)
class Remembered:
    """A prompt that was computed, with its answer once it has ended. Empty when it was forgotten."""

    request_id: RequestId
    root: bytes
    token_ids: TokenIds


class PrefixHistory:
    """The fates of pages that are gone, and who last had a page. `root` is a `root_key`."""

    def __init__(self, *, page_size: int, max_tokens: int, max_pages: int = 131_072) -> None:
        """`max_tokens` 0: nothing is remembered."""
        self._max_tokens = max_tokens
        max_pages = min(max_pages, max_tokens // page_size)
        self._fates = _Recent[Evicted](max_pages)
        self._owners = _Recent[Remembered](max_pages)
        self._sequences: deque[Remembered] = deque()
        self._num_tokens = 0

    def begin(self, request_id: RequestId, root: bytes, token_ids: TokenIds) -> Remembered:
        """A prompt is being computed; `extend` adds its answer."""
        sequence = Remembered(request_id, root, token_ids)
        self._sequences.append(sequence)
        self._num_tokens += len(token_ids)
        self._forget()
        return sequence

    def extend(self, sequence: Remembered, token_ids: TokenIds) -> None:
        """`token_ids` (copied) are the whole sequence now."""
        if len(sequence.token_ids):  # else it was forgotten
            self._num_tokens += len(token_ids) - len(sequence.token_ids)
            sequence.token_ids = token_ids.copy()
            self._forget()

    def own(self, sequence: Remembered, key: bytes) -> None:
        """The page with this key (or the root) was used by `sequence`, and by nobody later."""
        self._owners.put(_name(key), sequence)

    def absorb(self, changes: Sequence[TierChange], *, now: float, owner: Remembered | None) -> None:
        """What happened to pages since the last call; those that are new on the device are `owner`'s."""
        for change in changes:
            if change.cause is None:
                for name in _names(change.keys):
                    self._fates.discard(name)
                    if owner is not None and change.tier == "device":
                        self._owners.put(name, owner)
            elif change.is_gone:
                fate = Evicted(change.tier, now, change.cause, change.is_stored)
                for name in _names(change.keys):
                    self._fates.put(name, fate)

    def fate(self, key: bytes) -> Evicted | None:
        """None: it is cached, or was never, or is forgotten."""
        return self._fates.get(_name(key))

    def owner(self, key: bytes) -> Remembered | None:
        """Who last used the page, or the root, with this key, as far as that is remembered."""
        return self._owners.get(_name(key))

    def latest(self, root: bytes, count: int) -> Iterator[Remembered]:
        """Up to `count` of the latest sequences under `root`, the last first; looks at no more than four times that."""
        found = 0
        for index, sequence in enumerate(reversed(self._sequences)):
            if found == count or index == 4 * count:
                return
            if sequence.root == root and len(sequence.token_ids):
                found += 1
                yield sequence

    def _forget(self) -> None:
        while self._sequences and self._num_tokens > self._max_tokens:
            oldest = self._sequences.popleft()
            self._num_tokens -= len(oldest.token_ids)
            oldest.token_ids = _NO_TOKENS


class _Recent(Generic[V]):
    """The values put or asked for last: all of the latest `max_size / 2`, and never more than `max_size`.

    Two generations: when the young one is full it becomes the old one, and what was old and not asked for is gone.
    """

    def __init__(self, max_size: int) -> None:
        self._half = max_size // 2
        self._young: dict[PageName, V] = {}
        self._old: dict[PageName, V] = {}

    def put(self, name: PageName, value: V) -> None:
        if not self._half:
            return
        if len(self._young) >= self._half and name not in self._young:
            self._old, self._young = self._young, {}
        self._young[name] = value

    def get(self, name: PageName) -> V | None:
        value = self._young.get(name)
        if value is None:
            value = self._old.get(name)
            if value is not None:
                self.put(name, value)
        return value

    def discard(self, name: PageName) -> None:
        self._young.pop(name, None)
        self._old.pop(name, None)


def _name(key: bytes) -> PageName:
    return int.from_bytes(key[:8], "little")


def _names(keys: bytes) -> list[PageName]:
    names: list[PageName] = np.frombuffer(keys, dtype="<u8")[:: KEY_BYTES // 8].tolist()
    return names
