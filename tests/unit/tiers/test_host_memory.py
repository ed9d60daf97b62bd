from __future__ import annotations

import threading

import numpy as np

from pagefall.tiers.host_memory import HostMemory, slot_bytes
from pagefall_storage import page_format
from pagefall_storage.page_format import HEADER_BYTES
from pagefall_storage.protocol import Hit


def test_a_slot_has_room_for_the_header_and_begins_a_cache_line() -> None:
    assert slot_bytes(64) == HEADER_BYTES + 64
    assert slot_bytes(65) == HEADER_BYTES + 128
    memory = HostMemory(100, 3, pinned=False)
    assert memory.num_bytes == 3 * slot_bytes(100)
    assert memory.payloads.ctypes.data % 64 == 0
    assert memory.payloads.strides[0] % 64 == 0


def test_a_value_is_header_and_payload_of_its_page_alone() -> None:
    memory = HostMemory(100, 3, pinned=False)
    memory.payloads[:] = np.arange(3)[:, None]
    before = memory.payloads.copy()
    value = memory.value(1)
    assert (len(value), value.contiguous) == (memory.value_bytes, True)
    assert len(value) == HEADER_BYTES + 100
    assert bytes(value[HEADER_BYTES:]) == bytes([1]) * 100
    value[HEADER_BYTES:] = bytes([7]) * 100
    assert (memory.payloads[1] == 7).all()
    assert (memory.payloads[[0, 2]] == before[[0, 2]]).all()


def test_a_value_can_be_sealed_and_verified_in_place() -> None:
    memory = HostMemory(100, 3, pinned=False)
    memory.payloads[2] = 9
    page_format.seal(memory.value(2), key=b"k" * 32, namespace=b"n" * 32)
    assert page_format.verify(memory.value(2), key=b"k" * 32, namespace=b"n" * 32) == Hit()
    assert (memory.payloads[2] == 9).all()


def test_populating_changes_nothing_that_was_written_meanwhile() -> None:
    memory = HostMemory(2**20, 100, pinned=False)
    memory.payloads[:] = 5
    for thread in threading.enumerate():
        if thread.name == "host-memory":
            thread.join(timeout=60)
    assert (memory.payloads == 5).all()
