"""One node of the radix tree: a span of whole pages, and where they are."""

from __future__ import annotations

import msgspec
import numpy as np

from pagefall.messages import PageIds


class Device(msgspec.Struct, frozen=True):
    """The node's pages are in device memory, and nowhere else. `page_ids`: one per page of the span."""

    page_ids: PageIds

    def split(self, num_pages: int) -> tuple[Device, Device]:
        """The first `num_pages` pages, and the others."""
        return Device(self.page_ids[:num_pages]), Device(self.page_ids[num_pages:])

    def extended(self, page_ids: PageIds) -> Device:
        return Device(np.concatenate((self.page_ids, page_ids)))


Residence = Device


class Node:
    """A span of whole pages behind its parent's. A root has no span and no parent.

    `key` is the name the parent knows it by: the token bytes of its first page (the root key for a root).
    `tokens` are the span's token ids, little-endian u32. `num_pins` counts the leases whose path goes through here, so
    it never rises on the way down. `created`, `last_access`, `num_hits` and `priority` are what eviction policies see
    (`eviction.NodeFacts`).
    """

    __slots__ = (
        "children",
        "created",
        "key",
        "last_access",
        "num_hits",
        "num_pins",
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
        self.residence = residence
        self.children: dict[bytes, Node] = {}
        self.num_pins = 0
        self.created = now
        self.last_access = now
        self.num_hits = 0
        self.priority = priority

    @property
    def num_pages(self) -> int:
        return len(self.residence.page_ids)
