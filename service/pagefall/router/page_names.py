"""The names of a prompt's pages, computed as far as somebody wants to know, once for all workers of one layout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import numpy as np
import xxhash

from pagefall.cache.keys import TOKEN_BYTES, page_keys_of_bytes, root_key, token_bytes
from pagefall.kv_events import page_names
from pagefall.messages import TokenIds
from pagefall.router.layout import PageLayout
from pagefall.router.routing import RouteRequest

_PART_PAGES: Final = 64
"""Pages that are named at once. Most prompts leave what is known in their first part or end in the last."""

_MAX_REQUESTS: Final = 256
_MAX_CHAINS: Final = 16_384

_Link = tuple[bytes, bytes]
"""The key before a part, and a digest of the part's tokens."""


class _Chains:
    """Parts that were named before: for each the page key at its end, and the names. 700 bytes a part, 11 MB at most.

    A prompt that is cached somewhere was seen before, here too; digesting 64 pages at once is ten times as fast as
    their keys. Two parts with one digest would only send a request to the wrong worker.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[_Link, tuple[bytes, bytes]] = OrderedDict()

    def follow(self, key: bytes, tokens: bytes, page_bytes: int) -> tuple[bytes, bytes]:
        """The key at the end of a part, and its names as bytes. `tokens` is the part's whole pages, at least one."""
        link = (key, xxhash.xxh3_128_digest(tokens, seed=page_bytes))
        known = self._known.get(link)
        if known is None:
            keys = page_keys_of_bytes(key, tokens, page_bytes)
            known = self._known[link] = (keys[-1], page_names(b"".join(keys)))
            if len(self._known) > _MAX_CHAINS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(link)
        return known


class PromptPages:
    """One prompt under one layout. Only whole pages before the last token count: that one is always computed."""

    def __init__(self, token_ids: TokenIds, root: bytes, layout: PageLayout, chains: _Chains) -> None:
        self._page_bytes = layout.page_size * TOKEN_BYTES
        self._num_pages = max(len(token_ids) - 1, 0) // layout.page_size
        self._tokens = token_bytes(token_ids[: self._num_pages * layout.page_size])
        self._chains = chains
        self._key = root
        self._parts: list[list[int]] = []

    def __len__(self) -> int:
        return self._num_pages

    def parts(self) -> Iterator[list[int]]:
        """The names, in order, in parts; each is computed when it is asked for the first time."""
        num_parts = -(-self._num_pages // _PART_PAGES)
        for index in range(num_parts):
            if index == len(self._parts):
                self._name_next()
            yield self._parts[index]

    def names(self, start: int = 0) -> list[int]:
        """All names from page `start` on."""
        return [name for part in self.parts() for name in part][start:]

    def _name_next(self) -> None:
        part_bytes = _PART_PAGES * self._page_bytes
        start = len(self._parts) * part_bytes
        tokens = self._tokens[start : start + part_bytes]
        self._key, names = self._chains.follow(self._key, tokens, self._page_bytes)
        self._parts.append(np.frombuffer(names, dtype="<u8").tolist())


class PageNames:
    """The names of the requests that are being routed. A request is known by its identity: it is frozen."""

    def __init__(self) -> None:
        self._chains = _Chains()
        self._recent: OrderedDict[int, tuple[RouteRequest, dict[PageLayout, PromptPages]]] = OrderedDict()

    def of(self, request: RouteRequest, layout: PageLayout) -> PromptPages:
        """The request must have `token_ids`. The salt is a part of every name, as in the server."""
        assert request.token_ids is not None
        pages = self._pages_of(request)
        if layout not in pages:
            root = root_key(layout.namespace, request.cache_salt)
            pages[layout] = PromptPages(request.token_ids, root, layout, self._chains)
        return pages[layout]

    def _pages_of(self, request: RouteRequest) -> dict[PageLayout, PromptPages]:
        known = self._recent.get(id(request))
        if known is None:
            # The request stays with its pages, so that no other can have its identity meanwhile.
            known = self._recent[id(request)] = (request, {})
            if len(self._recent) > _MAX_REQUESTS:
                self._recent.popitem(last=False)
        return known[1]

    def forget(self, request: RouteRequest) -> None:
        """It was sent."""
        self._recent.pop(id(request), None)
