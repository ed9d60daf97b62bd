"""The pool's blocks, and the views of them that attention reads."""

from __future__ import annotations

import torch

from pagefall.model.kv_pool import KVPool, LayerShape

MIXED = (LayerShape(2, 16, 8), LayerShape(4, 8, 8))


def pool(layers: tuple[LayerShape, ...]) -> KVPool:
    return KVPool(layers, num_pages=3, page_size=4, dtype=torch.bfloat16, device=torch.device("cpu"))


def test_layers_of_one_width_lie_in_one_block() -> None:
    assert [tuple(block.shape) for block in pool((LayerShape(2, 8, 8),) * 3).blocks] == [(12, 12, 8)]


def test_each_width_has_a_block_of_its_own() -> None:
    assert [tuple(block.shape) for block in pool(MIXED).blocks] == [(2, 12, 16), (10, 12, 8)]


def test_keys_and_values_are_contiguous_views_that_share_no_plane() -> None:
    mixed = pool(MIXED)
    views = [*mixed.keys, *mixed.values]
    assert [tuple(view.shape) for view in mixed.keys] == [(2, 12, 16), (4, 12, 8)]
    assert [tuple(view.shape) for view in mixed.values] == [(2, 12, 8), (4, 12, 8)]
    for number, view in enumerate(views, start=1):
        assert view.is_contiguous()
        view.fill_(number)
    assert all(bool((view == number).all()) for number, view in enumerate(views, start=1))
    assert sum(view.numel() for view in views) == sum(block.numel() for block in mixed.blocks)
    assert not any(bool((block == 0).any()) for block in mixed.blocks)


def test_a_pages_bytes_times_pages_are_the_pools() -> None:
    mixed = pool(MIXED)
    assert mixed.page_bytes * 3 == mixed.num_bytes == 3 * 4 * 2 * (2 * 24 + 4 * 16)
