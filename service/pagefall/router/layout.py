"""What the names of a prompt's pages depend on beside the prompt."""

from __future__ import annotations

import msgspec


class PageLayout(msgspec.Struct, frozen=True):
    """`namespace` is `Namespace.digest()` of the worker, 32 bytes; `page_size` in tokens."""

    namespace: bytes
    page_size: int


class CacheFacts(msgspec.Struct, frozen=True):
    """What a worker says of its cache. Workers with the same `store_id` and namespace share a store; None has none.
    `num_device_pages` None: it does not say how many its device holds.
    """

    layout: PageLayout
    store_id: str | None = ""
    num_device_pages: int | None = None


class TierPages(msgspec.Struct, frozen=True):
    """Of a prompt's leading pages, how many a worker has in each tier; a page counts for the nearest that has it."""

    num_device: int = 0
    num_host: int = 0
    num_storage: int = 0

    @property
    def num_pages(self) -> int:
        return self.num_device + self.num_host + self.num_storage
