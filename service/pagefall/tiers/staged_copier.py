"""Copies of pages between the host's pool and a device with memory of its own.

A page is a strided view on the device and one piece in host memory. The device gathers pages into a staging buffer
(page-first, as in host memory), from which each goes over the bus in one piece; and the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import torch

from pagefall.messages import PageIds
from pagefall.model.kv_pool import KVPool
from pagefall.tiers.host_memory import HostMemory

_STAGING_BYTES: Final = 64 * 2**20
_WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class _Lane(NamedTuple):
    """What one direction has for itself. `stream` None: everything is done in the order of the calls."""

    staging: torch.Tensor
    """`[num_pages, page_bytes]` bytes on the device."""
    parts: list[torch.Tensor]
    """The same a block, `[num_pages, num_planes, words of a row]`."""
    stream: torch.cuda.Stream | None


class StagedCopier:
    """A `PageCopier`. On CUDA each direction has a stream beside the model's, and host memory should be pinned."""

    def __init__(self, kv_pool: KVPool, memory: HostMemory, *, staging_bytes: int = _STAGING_BYTES) -> None:
        self._pool_device = kv_pool.blocks[0].device
        self._host = torch.from_numpy(memory.payloads)
        row_bytes = [block.nbytes // (block.shape[0] * kv_pool.num_pages) for block in kv_pool.blocks]
        self._word = _WORDS[math.gcd(8, *row_bytes)]
        self._blocks = [
            block.view(torch.uint8).view(block.shape[0], kv_pool.num_pages, -1).view(self._word)
            for block in kv_pool.blocks
        ]
        self._num_staged = max(1, staging_bytes // memory.page_bytes)
        self._offloading = self._lane(memory.page_bytes)
        self._loading = self._lane(memory.page_bytes)

    def offload(self, device_page_ids: PageIds, host_page_ids: PageIds) -> None:
        lane = self._offloading
        with torch.cuda.stream(lane.stream):
            for pages, hosts in self._batches(lane, device_page_ids, host_page_ids):
                for block, part in zip(self._blocks, lane.parts, strict=True):
                    part[: len(hosts)] = block[:, pages].transpose(0, 1)
                for staged, host in zip(lane.staging, hosts, strict=False):
                    self._host[host].copy_(staged, non_blocking=lane.stream is not None)
        _finish(lane)

    def load_back(self, host_page_ids: PageIds, device_page_ids: PageIds) -> None:
        lane = self._loading
        with torch.cuda.stream(lane.stream):
            for pages, hosts in self._batches(lane, device_page_ids, host_page_ids):
                for staged, host in zip(lane.staging, hosts, strict=False):
                    staged.copy_(self._host[host], non_blocking=lane.stream is not None)
                for block, part in zip(self._blocks, lane.parts, strict=True):
                    block[:, pages] = part[: len(hosts)].transpose(0, 1)
        _finish(lane)

    def _batches(
        self, lane: _Lane, device_page_ids: PageIds, host_page_ids: PageIds
    ) -> Iterator[tuple[torch.Tensor, list[int]]]:
        """As many pages at a time as are staged: their numbers on the device, as it wants them, and in host memory.

        Whatever the model was given before this is done with its pages first.
        """
        if lane.stream is not None:
            lane.stream.wait_stream(torch.cuda.default_stream(self._pool_device))
        for first in range(0, len(host_page_ids), self._num_staged):
            batch = slice(first, first + self._num_staged)
            pages = torch.from_numpy(device_page_ids[batch].astype(np.int64)).to(self._pool_device)
            yield pages, host_page_ids[batch].tolist()

    def _lane(self, page_bytes: int) -> _Lane:
        staging = torch.empty((self._num_staged, page_bytes), dtype=torch.uint8, device=self._pool_device)
        words = staging.view(self._word)
        parts = []
        for block in self._blocks:
            num_planes, _, num_words = block.shape
            part, words = words.tensor_split([num_planes * num_words], dim=1)
            parts.append(part.view(self._num_staged, num_planes, num_words))
        on_cuda = self._pool_device.type == "cuda"
        stream = torch.cuda.Stream(self._pool_device) if on_cuda else None  # type: ignore[no-untyped-call]
        return _Lane(staging, parts, stream)


def _finish(lane: _Lane) -> None:
    if lane.stream is not None:
        lane.stream.synchronize()
