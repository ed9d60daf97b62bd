"""The host tier's memory: one slot a page, all layers together (page-first), in the form in which it is stored.

    slot `p`   [ header, 128 bytes | payload, `page_bytes` | up to 63 unused bytes ]

Header and payload are exactly the value that the store keeps (`pagefall_storage.page_format`), so a page goes to the
store and comes from it in one piece, without a copy. Slots begin at multiples of 64 bytes, a cache line.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import sys
import threading
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from pagefall_storage.page_format import HEADER_BYTES

_log = logging.getLogger("pagefall.tiers")

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT: Final = 64
_POPULATE_WRITE: Final = 23
"""Linux's MADV_POPULATE_WRITE (5.14), which Python has no name for."""
_POPULATE_BYTES: Final = 64 * 2**20


def slot_bytes(page_bytes: int) -> int:
    """The room that a page of `page_bytes` takes in the host pool."""
    return -(-(HEADER_BYTES + page_bytes) // _ALIGNMENT) * _ALIGNMENT


class HostMemory:
    """`num_pages` slots of undefined content. Who may touch which of them is decided elsewhere, by the scheduler.

    `payloads` is `[num_pages, page_bytes]` uint8, a strided view of all slots.
    """

    def __init__(self, page_bytes: int, num_pages: int, *, pinned: bool) -> None:
        """`pinned` registers the memory with CUDA, whose copies need it so, for as long as the process lives.

        Raises `RuntimeError` where CUDA refuses.
        """
        self.page_bytes = page_bytes
        self.num_pages = num_pages
        self._slots = _aligned(num_pages * slot_bytes(page_bytes)).reshape(num_pages, -1)
        self.payloads: Bytes = self._slots[:, HEADER_BYTES : HEADER_BYTES + page_bytes]
        if pinned:
            _pin(self._slots)
        else:
            threading.Thread(target=_populate, args=(self._slots,), name="host-memory", daemon=True).start()

    @property
    def value_bytes(self) -> int:
        """Bytes of one page's value in the store: header and payload."""
        return HEADER_BYTES + self.page_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots together."""
        return self._slots.nbytes

    def value(self, page_id: int) -> memoryview:
        """Header and payload of one page, writable, `value_bytes` long: what the store keeps."""
        return self._slots[page_id, : self.value_bytes].data


def _aligned(num_bytes: int) -> Bytes:
    """Untouched memory from the start of a page of the kernel on; numpy asks for huge pages."""
    memory = np.empty(num_bytes + mmap.PAGESIZE, dtype=np.uint8)
    first = -memory.ctypes.data % mmap.PAGESIZE
    return memory[first : first + num_bytes]


def _populate(memory: Bytes) -> None:
    """Has the kernel back `memory` with pages now, its content unchanged, while others use it already.

    Otherwise the first copy into each page would wait for the kernel to find and clear one (measured: 0.1 to 2 s a
    GB). Where the kernel cannot do it, that is what happens.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start, num_bytes = memory.ctypes.data, memory.nbytes
    for offset in range(0, num_bytes, _POPULATE_BYTES):
        if madvise(start + offset, min(_POPULATE_BYTES, num_bytes - offset), _POPULATE_WRITE):
            _log.debug("host memory is not populated ahead of use: %s", os.strerror(ctypes.get_errno()))
            return


def _pin(memory: Bytes) -> None:
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    status = int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
    if status != 0:
        raise RuntimeError(f"CUDA cannot pin {memory.nbytes:,} bytes of host memory (cudaHostRegister: {status})")
