"""Transfers between tiers, and changes of the store: between the scheduler and the cache controller."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pagefall.messages.ids import PageIds, TransferId


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """Copy pages from the device to the host pool, `device_page_ids[i]` to `host_page_ids[i]`. -> `CopyDone`"""

    transfer_id: TransferId
    device_page_ids: PageIds
    host_page_ids: PageIds


class LoadBack(msgspec.Struct, frozen=True, kw_only=True):
    """Copy pages from the host pool to the device, `host_page_ids[i]` to `device_page_ids[i]`. -> `CopyDone`"""

    transfer_id: TransferId
    host_page_ids: PageIds
    device_page_ids: PageIds


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the store how many leading `keys` (32 bytes each) it has. -> `LookedUp`"""

    transfer_id: TransferId
    keys: tuple[bytes, ...]


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Read pages from the store into the host pool, in the order given, and verify them.

    -> any number of `PagesFetched`, then one `FetchEnded`.
    """

    transfer_id: TransferId
    keys: tuple[bytes, ...]
    host_page_ids: PageIds


class StopFetch(msgspec.Struct, frozen=True, kw_only=True):
    """Begin no more reads for this `Fetch`, whose `FetchEnded` comes when the last one under way is over."""

    transfer_id: TransferId


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Write pages of the host pool to the store. -> `BackedUp`"""

    transfer_id: TransferId
    keys: tuple[bytes, ...]
    host_page_ids: PageIds


class ClearStorage(msgspec.Struct, frozen=True, kw_only=True):
    """Delete every value of this model's namespace. -> `StorageCleared`"""

    transfer_id: TransferId


class AttachStorage(msgspec.Struct, frozen=True, kw_only=True):
    """Use this store from now on, in place of the one that is attached, if any. -> `StorageChanged`

    `extra_config` is the backend's own. One change at a time: the next is asked for when the answer has come.
    """

    backend: str
    extra_config: dict[str, Any]


class DetachStorage(msgspec.Struct, frozen=True):
    """Use no store from now on. -> `StorageChanged`. One change at a time, as with `AttachStorage`."""


class CopyDone(msgspec.Struct, frozen=True, kw_only=True):
    """The copy is over: nothing reads or writes its pages any more.

    `error`: one line; what was to be written is undefined then. None: all pages were copied. `seconds` is the time of
    the copy alone, without waiting.
    """

    transfer_id: TransferId
    seconds: float
    error: str | None = None


StorageAnswer = Literal["answered", "timeout", "error", "breaker_open"]
"""Whether the store said something; with `breaker_open` it was not asked."""


class LookedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`num_present` is 0 unless the store answered."""

    transfer_id: TransferId
    num_present: int
    answer: StorageAnswer
    seconds: float


FetchOutcome = Literal["hit", "miss", "corrupt", "timeout", "error", "breaker_open"]


class PagesFetched(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some pages of a `Fetch`; each is reported at most once, and not touched afterwards.

    `indices[i]` is a position in `Fetch.keys`. Only a `hit` was verified and is the page.
    """

    transfer_id: TransferId
    indices: tuple[int, ...]
    outcomes: tuple[FetchOutcome, ...]


class FetchEnded(msgspec.Struct, frozen=True, kw_only=True):
    """No page of the `Fetch` is written any more; those never reported were not read.

    `first_seconds` from its start to the first report, `seconds` to its end, for `num_bytes` of hits.
    """

    transfer_id: TransferId
    num_bytes: int
    first_seconds: float
    seconds: float


class BackedUp(msgspec.Struct, frozen=True, kw_only=True):
    """`stored[i]` belongs to `Backup.keys[i]`. Nothing reads its pages any more."""

    transfer_id: TransferId
    stored: tuple[bool, ...]


class StorageCleared(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: one line, why the store could not be cleared (some values may be gone all the same); else None."""

    transfer_id: TransferId
    num_pages: int
    error: str | None = None


class StorageChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the store before is still answered by the one that was attached then.

    `is_attached`: whether there is a store now. `error`: one line, why nothing has changed; else None. `param`: the
    field of `AttachStorage` that is at fault; None where the store is, which may be down.
    """

    is_attached: bool
    error: str | None = None
    param: Literal["backend", "extra_config"] | None = None
