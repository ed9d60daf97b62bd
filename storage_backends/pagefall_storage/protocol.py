"""What a storage backend is: a small asynchronous store of values under names.

A *key* is a name: ASCII, 1 to 120 characters out of `a-z`, `0-9`, `-`, `/`, no empty part between slashes
(`<namespace>/<page key>`). A *value* is opaque bytes, header and payload together (see `page_format`): the backend
neither reads nor checks them, the caller does, after every read. Backends store, find, replace and forget. A key stands
for one content: a backend may take a value of the same length for the same, so a caller that finds one damaged deletes
it.

The caller owns deadlines, retries and the circuit breaker: a backend never retries and never waits on purpose. What can
be expected (not there, damaged, full, unreachable) is an outcome, a value; an exception is a bug. It is the caller's if
it is `ValueError`, which every method raises for what is not a key, and `get` for more or fewer buffers than keys.

Every method may run at the same time as any other, for the same keys too. Cancelling a method is allowed: it then
returns only once nothing of it writes to the caller's buffers any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, NewType, Protocol

import msgspec

Key = NewType("Key", str)


class Hit(msgspec.Struct, frozen=True):
    """The value filled its buffer exactly. Whether it is the right one is for the caller to check."""


class Miss(msgspec.Struct, frozen=True):
    """There is no such value (any more)."""


class Corrupt(msgspec.Struct, frozen=True):
    """There is something under the key that cannot be the value: too short, too long, not a file... The buffer's
    content is undefined. `reason` is a short phrase for a log and a counter, e.g. "short", "long", "not a file".
    """

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """The store could not say: the network, the disk, a permission, its own deadline. `reason` is one line.

    `kind`: "timeout" if the store did not answer in time, "full" if there is no room for the value, else "error".
    """

    kind: Literal["timeout", "full", "error"]
    reason: str


class Stored(msgspec.Struct, frozen=True):
    """The value is complete and visible, or was there already with the same length."""


GetOutcome = Hit | Miss | Corrupt | Failed
PutOutcome = Stored | Failed


class PutItem(msgspec.Struct, frozen=True):
    """`value` stays as it is until `put` has returned."""

    key: Key
    value: memoryview


class StoredValue(msgspec.Struct, frozen=True):
    """What `scan` tells of a value. `last_used` is seconds since the epoch; None where the store does not know."""

    key: Key
    num_bytes: int
    last_used: float | None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How much is stored. `max_bytes` None: no limit of its own. `num_evicted` counts since the backend was opened."""

    num_values: int
    num_bytes: int
    max_bytes: int | None
    num_evicted: int = 0


class StorageBackend(Protocol):
    """One open store. `open_backend` in `registry` makes one; it is ready when it is made."""

    @property
    def description(self) -> str:
        """One line for the log: what and where, without secrets."""

    async def contains(self, keys: Sequence[Key]) -> int:
        """How many leading `keys` are there. A hint: a value may be gone when it is read. Raises `StorageError` when
        the store cannot say.
        """

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        """Reads each value straight into its buffer: writable, contiguous, of bytes, as long as the value should be."""

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        """Stores each value so that readers see all of it or nothing, replacing one of another length."""

    async def delete(self, keys: Sequence[Key]) -> int:
        """Forgets the values, whatever is there under these keys, and returns how many there were.

        Raises `StorageError` when the store cannot say.
        """

    def scan(self) -> AsyncIterator[StoredValue]:
        """Every value, in no particular order; those that come or go meanwhile may be missed. Raises `StorageError`."""

    async def usage(self) -> Usage:
        """Raises `StorageError` when the store cannot say."""

    async def aclose(self) -> None:
        """Ends everything under way and gives back threads, files and connections. May be called again."""
