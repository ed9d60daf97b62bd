from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pagefall.messages import PageIds
from pagefall.model.kv_pool import KVPool, LayerShape
from pagefall.tiers import copier as copier_module
from pagefall.tiers.copier import CpuCopier, PageCopier, page_runs
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.staged_copier import StagedCopier

NUM_DEVICE_PAGES, NUM_HOST_PAGES, PAGE_SIZE = 12, 20, 4

ALIKE = (LayerShape(2, 8, 8),) * 3
MIXED = (LayerShape(2, 16, 8), LayerShape(4, 8, 8))
ODD = (LayerShape(1, 3, 5),)

MakeCopier = Callable[[KVPool, HostMemory], PageCopier]


def one_page_staged(kv_pool: KVPool, memory: HostMemory) -> StagedCopier:
    return StagedCopier(kv_pool, memory, staging_bytes=1)


every_copier = pytest.mark.parametrize("make", [CpuCopier, StagedCopier, one_page_staged])
every_shape = pytest.mark.parametrize("layers", [ALIKE, MIXED, ODD])


def pools(layers: tuple[LayerShape, ...]) -> tuple[KVPool, HostMemory]:
    """Random bytes in both."""
    device = torch.device("cpu")
    kv_pool = KVPool(layers, num_pages=NUM_DEVICE_PAGES, page_size=PAGE_SIZE, dtype=torch.bfloat16, device=device)
    memory = HostMemory(kv_pool.page_bytes, NUM_HOST_PAGES, pinned=False)
    rng = np.random.default_rng(0)
    for block in kv_pool.blocks:
        block.view(torch.uint8).numpy()[...] = rng.integers(0, 256, block.view(torch.uint8).shape)
    for page in range(NUM_HOST_PAGES):
        memory.value(page)[:] = rng.bytes(memory.value_bytes)
    return kv_pool, memory


def device_page(kv_pool: KVPool, page: int) -> bytes:
    """The payload of a device page, put together from what attention reads."""
    slots = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
    return b"".join(block[:, slots].contiguous().view(torch.uint8).numpy().tobytes() for block in kv_pool.blocks)


def ids(*pages: int) -> PageIds:
    return np.array(pages, dtype=np.int32)


@every_shape
@every_copier
def test_offloaded_pages_are_the_devices_and_no_other_byte_changes(
    make: MakeCopier, layers: tuple[LayerShape, ...]
) -> None:
    kv_pool, memory = pools(layers)
    values = [bytes(memory.value(page)) for page in range(NUM_HOST_PAGES)]
    pages = [device_page(kv_pool, page) for page in range(NUM_DEVICE_PAGES)]
    moves = {3: 7, 4: 8, 5: 9, 0: 1, 11: 0, 7: 19}
    make(kv_pool, memory).offload(ids(*moves), ids(*moves.values()))
    header_bytes = memory.value_bytes - memory.page_bytes
    for device, host in moves.items():
        values[host] = values[host][:header_bytes] + device_page(kv_pool, device)
    assert [bytes(memory.value(page)) for page in range(NUM_HOST_PAGES)] == values
    assert [device_page(kv_pool, page) for page in range(NUM_DEVICE_PAGES)] == pages


@every_shape
@every_copier
def test_loaded_pages_are_the_hosts_and_no_other_byte_changes(make: MakeCopier, layers: tuple[LayerShape, ...]) -> None:
    kv_pool, memory = pools(layers)
    values = [bytes(memory.value(page)) for page in range(NUM_HOST_PAGES)]
    pages = [device_page(kv_pool, page) for page in range(NUM_DEVICE_PAGES)]
    moves = {7: 3, 8: 4, 9: 5, 1: 0, 0: 11, 19: 7}
    make(kv_pool, memory).load_back(ids(*moves), ids(*moves.values()))
    for host, device in moves.items():
        pages[device] = memory.payloads[host].tobytes()
    assert [device_page(kv_pool, page) for page in range(NUM_DEVICE_PAGES)] == pages
    assert [bytes(memory.value(page)) for page in range(NUM_HOST_PAGES)] == values


@every_shape
def test_both_copiers_lay_a_page_out_alike(layers: tuple[LayerShape, ...]) -> None:
    kv_pool, memory = pools(layers)
    CpuCopier(kv_pool, memory).offload(ids(5), ids(0))
    StagedCopier(kv_pool, memory).offload(ids(5), ids(1))
    assert (memory.payloads[0] == memory.payloads[1]).all()


@every_copier
def test_a_copy_of_no_pages_is_nothing(make: MakeCopier) -> None:
    kv_pool, memory = pools(ALIKE)
    copier = make(kv_pool, memory)
    copier.offload(ids(), ids())
    copier.load_back(ids(), ids())


def test_runs_end_where_either_pool_has_a_gap() -> None:
    assert list(page_runs(ids(1, 2, 3, 4, 9, 8), ids(5, 6, 0, 1, 2, 3))) == [(1, 5, 2), (3, 0, 2), (9, 2, 1), (8, 3, 1)]


def test_a_large_copy_is_shared_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    kv_pool, memory = pools(ALIKE)
    monkeypatch.setattr(copier_module, "_TWO_THREADS_BYTES", 4 * memory.page_bytes)
    threads: list[str] = []
    monkeypatch.setattr(copier_module, "_copy_runs", lambda *_: threads.append(threading.current_thread().name))
    copier = CpuCopier(kv_pool, memory)
    copier.offload(ids(0, 1, 2), ids(0, 1, 2))
    assert threads == [threading.current_thread().name]
    copier.offload(ids(0, 1, 2, 3, 4), ids(0, 1, 2, 3, 4))
    assert sorted(name.startswith("page-copy") for name in threads) == [False, False, True]


def test_the_halves_of_a_large_copy_are_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kv_pool, memory = pools(MIXED)
    monkeypatch.setattr(copier_module, "_TWO_THREADS_BYTES", 1)
    CpuCopier(kv_pool, memory).offload(ids(*range(11)), ids(*range(3, 14)))
    assert [memory.payloads[3 + page].tobytes() for page in range(11)] == [device_page(kv_pool, p) for p in range(11)]


@every_copier
def test_both_directions_may_run_at_once(make: MakeCopier) -> None:
    kv_pool, memory = pools(MIXED)
    copier = make(kv_pool, memory)
    down, up = ids(*range(6)), ids(*range(6, 12))
    expected = [device_page(kv_pool, page) for page in range(6)], memory.payloads[6:12].copy()
    with ThreadPoolExecutor(2) as threads:
        for _ in range(5):
            both = [threads.submit(copier.offload, down, down), threads.submit(copier.load_back, up, up)]
            for copy in both:
                copy.result(timeout=10)
    assert [payload.tobytes() for payload in memory.payloads[:6]] == expected[0]
    assert [device_page(kv_pool, page) for page in range(6, 12)] == [payload.tobytes() for payload in expected[1]]
