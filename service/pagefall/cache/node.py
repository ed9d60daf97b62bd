"""One node of the radix tree: a span of whole pages, and where they are.

                  offload begins             copied
    Device ---------------------> Offloading ------> DeviceAndHost
      ^                               |                 |  |   ^
      +---- the copy failed ----------+                 |  |   | loaded back
      +---- host copy evicted --------------------------+  |   |
      |                                device copy evicted +-> Host ---> (gone)
      +---> (gone)

What the store holds is no residence: its pages are looked up, and read into the host pool, for the request that wants
them. A load back is none either: the pages it fills are private to a lease until they are complete.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

import msgspec
import numpy as np

from pagefall.messages import PageIds

NO_PAGES: Final[PageIds] = np.empty(0, dtype=np.int32)


class Device(msgspec.Struct, frozen=True):
    """The node's pages are in device memory, and nowhere else. `page_ids`: one per page of the span."""

    page_ids: PageIds

    def split(self, num_pages: int) -> tuple[Device, Device]:
        """The first `num_pages` pages, and the others."""
        return Device(self.page_ids[:num_pages]), Device(self.page_ids[num_pages:])

    def extended(self, page_ids: PageIds) -> Device:
        return Device(np.concatenate((self.page_ids, page_ids)))


class Offloading(msgspec.Struct, frozen=True):
    """In device memory, and on the way to `host_page_ids`, whose content is undefined until the copy is over."""

    page_ids: PageIds
    host_page_ids: PageIds

    def split(self, num_pages: int) -> tuple[Offloading, Offloading]:
        return (
            Offloading(self.page_ids[:num_pages], self.host_page_ids[:num_pages]),
            Offloading(self.page_ids[num_pages:], self.host_page_ids[num_pages:]),
        )


class DeviceAndHost(msgspec.Struct, frozen=True):
    """The same in both: either copy may be dropped."""

    page_ids: PageIds
    host_page_ids: PageIds

    def split(self, num_pages: int) -> tuple[DeviceAndHost, DeviceAndHost]:
        return (
            DeviceAndHost(self.page_ids[:num_pages], self.host_page_ids[:num_pages]),
            DeviceAndHost(self.page_ids[num_pages:], self.host_page_ids[num_pages:]),
        )


class Host(msgspec.Struct, frozen=True):
    """In host memory alone."""

    host_page_ids: PageIds

    def split(self, num_pages: int) -> tuple[Host, Host]:
        return Host(self.host_page_ids[:num_pages]), Host(self.host_page_ids[num_pages:])


Residence: TypeAlias = Device | Offloading | DeviceAndHost | Host


class Node:
    """A span of whole pages behind its parent's. A root has no span and no parent.

    `key` is the name the parent knows it by: the token bytes of its first page (the root key for a root).
    `tokens` are the span's token ids, little-endian u32. `num_pins` counts the leases and offloads whose path goes
    through here, so it never rises on the way down, and a pinned node is on the device. `num_host_pins` counts the
    transfers that read the host copy. `created`, `last_access`, `num_hits` and `priority` are what eviction policies
    see (`eviction.NodeFacts`). `is_stored`: every page was in the store when last heard of. `page_keys`: 32 bytes a
    page, none for a root, whose `key` they begin from.
    """

    __slots__ = (
        "children",
        "created",
        "is_stored",
        "key",
        "last_access",
        "num_device_children",
        "num_hits",
        "num_host_children",
        "num_host_pins",
        "num_pins",
        "page_keys",
        "parent",
        "priority",
        "residence",
        "tokens",
    )

    def __init__(
        self, *, key: bytes, parent: Node | None, tokens: bytes, residence: Residence, now: float, priority: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.residence: Residence = residence
        self.children: dict[bytes, Node] = {}
        self.num_device_children = 0
        self.num_host_children = 0
        self.num_pins = 0
        self.num_host_pins = 0
        self.created = now
        self.last_access = now
        self.num_hits = 0
        self.priority = priority
        self.is_stored = False
        self.page_keys = b""

    @property
    def num_pages(self) -> int:
        match self.residence:
            case Host(host_page_ids):
                return len(host_page_ids)
            case Device(page_ids) | Offloading(page_ids, _) | DeviceAndHost(page_ids, _):
                return len(page_ids)
            case _:
                assert_never(self.residence)

    @property
    def device_page_ids(self) -> PageIds:
        """Its device pages; none where it is in host memory alone."""
        return NO_PAGES if isinstance(self.residence, Host) else self.residence.page_ids

    @property
    def host_page_ids(self) -> PageIds:
        """Its host pages, those on the way included; none where it is in device memory alone."""
        return NO_PAGES if isinstance(self.residence, Device) else self.residence.host_page_ids

    @property
    def is_on_device(self) -> bool:
        return not isinstance(self.residence, Host)

    @property
    def is_on_host(self) -> bool:
        """Whether its host copy is complete; a root, without pages, counts as everywhere."""
        return self.parent is None or isinstance(self.residence, DeviceAndHost | Host)
