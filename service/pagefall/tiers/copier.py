"""Copies of whole pages between the device's pool and the host's.

A page's payload in host memory is, block after block of the device's pool (`model.kv_pool`), the page's slots of every
plane: `[num_planes, page_size, width]`. Both sides of a copy are views of that shape; nothing is transposed in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagefall.messages import PageIds
from pagefall.model.kv_pool import KVPool
from pagefall.tiers.host_memory import HostMemory

Rows = npt.NDArray[np.void]
"""Pages of one block, `[num_pages, num_planes]`; an element is a page's part of one plane, `[page_size, width]`."""

_TWO_THREADS_BYTES: Final = 4 * 2**20
"""From here on a second thread saves more time than it takes to start."""


class PageCopier(Protocol):
    """Both methods block until everything is copied, and may run at the same time on pages that are not the same.

    `device_page_ids[i]` and `host_page_ids[i]` are the two places of one page. The caller sees to it that no one
    else writes either of them, and that what computes on the device has been given the work that writes the source.
    """

    def offload(self, device_page_ids: PageIds, host_page_ids: PageIds) -> None:
        """Device to host. Payloads alone are written: the headers are the store's."""

    def load_back(self, host_page_ids: PageIds, device_page_ids: PageIds) -> None:
        """Host to device."""


class CpuCopier:
    """For a device pool in host memory: a run of pages is one strided copy a block.

    numpy and not torch: it lets go of the GIL as well, and brings no second pool of OpenMP threads to life, which
    would halve the speed of the model's. Pieces of 2 KB are too small for the instructions with which memcpy spares
    itself reading what it overwrites: one thread reaches 60% of its speed, two reach 80%, so a large copy is halved.
    """

    def __init__(self, kv_pool: KVPool, memory: HostMemory) -> None:
        self._page_bytes = memory.page_bytes
        self._device = _device_rows(kv_pool)
        self._host = _host_rows(kv_pool, memory)

    def offload(self, device_page_ids: PageIds, host_page_ids: PageIds) -> None:
        self._copy(self._device, device_page_ids, self._host, host_page_ids)

    def load_back(self, host_page_ids: PageIds, device_page_ids: PageIds) -> None:
        self._copy(self._host, host_page_ids, self._device, device_page_ids)

    def _copy(self, source: Sequence[Rows], source_ids: PageIds, target: Sequence[Rows], target_ids: PageIds) -> None:
        half = len(source_ids) // 2 if len(source_ids) * self._page_bytes >= _TWO_THREADS_BYTES else 0
        if half == 0:
            _copy_runs(source, source_ids, target, target_ids)
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="page-copy") as helper:
            second = helper.submit(_copy_runs, source, source_ids[half:], target, target_ids[half:])
            _copy_runs(source, source_ids[:half], target, target_ids[:half])
            second.result()


def page_runs(source_ids: PageIds, target_ids: PageIds) -> Iterator[tuple[int, int, int]]:
    """`(first source page, first target page, number of pages)` of each run that is contiguous in both pools."""
    breaks = np.flatnonzero((np.diff(source_ids) != 1) | (np.diff(target_ids) != 1)) + 1
    for first, end in pairwise(sorted({0, *breaks.tolist(), len(source_ids)})):
        yield int(source_ids[first]), int(target_ids[first]), end - first


def _copy_runs(source: Sequence[Rows], source_ids: PageIds, target: Sequence[Rows], target_ids: PageIds) -> None:
    for source_page, target_page, length in page_runs(source_ids, target_ids):
        for source_rows, target_rows in zip(source, target, strict=True):
            np.copyto(target_rows[target_page : target_page + length], source_rows[source_page : source_page + length])


def _device_rows(kv_pool: KVPool) -> list[Rows]:
    rows = []
    for block in kv_pool.blocks:
        pages = block.view(torch.uint8).numpy().reshape(block.shape[0], kv_pool.num_pages, -1)
        rows.append(_rows(pages).transpose())
    return rows


def _host_rows(kv_pool: KVPool, memory: HostMemory) -> list[Rows]:
    rows = []
    offset = 0
    for block in kv_pool.blocks:
        num_bytes = block.nbytes // kv_pool.num_pages
        payloads = memory.payloads[:, offset : offset + num_bytes]
        rows.append(_rows(payloads.reshape(memory.num_pages, block.shape[0], -1)))
        offset += num_bytes
    return rows


def _rows(pages: npt.NDArray[np.uint8]) -> Rows:
    """The bytes of the last dimension as one element, which numpy copies in one piece."""
    return pages.view(f"V{pages.shape[-1]}")[..., 0]
