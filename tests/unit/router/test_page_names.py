from __future__ import annotations

import numpy as np
import pytest

from pagefall.cache.keys import page_keys, root_key
from pagefall.kv_events import names_as_ints, page_names
from pagefall.messages import TokenIds
from pagefall.router.layout import PageLayout
from pagefall.router.page_names import PageNames
from pagefall.router.routing import RouteRequest

LAYOUT = PageLayout(b"n" * 32, 16)


def tokens(count: int) -> TokenIds:
    return np.random.default_rng(1).integers(0, 50_000, count, dtype=np.uint32)


def request(token_ids: TokenIds, salt: str = "") -> RouteRequest:
    return RouteRequest(token_ids=token_ids, text="", cache_salt=salt)


def servers_names(token_ids: TokenIds, layout: PageLayout, salt: str = "") -> list[int]:
    """As the server's own events have them."""
    keys = page_keys(root_key(layout.namespace, salt), token_ids, layout.page_size)
    return names_as_ints(page_names(b"".join(keys)))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("num_tokens", [1000, 1024, 5000])
def test_names_are_those_of_the_server(page_size: int, num_tokens: int) -> None:
    layout = PageLayout(b"n" * 32, page_size)
    prompt = tokens(num_tokens)
    pages = PageNames().of(request(prompt), layout)
    assert pages.names() == servers_names(prompt[:-1], layout)
    assert len(pages) == (num_tokens - 1) // page_size


def test_the_salt_and_the_namespace_are_a_part_of_every_name() -> None:
    names = PageNames()
    prompt = tokens(100)
    salted = names.of(request(prompt, "tenant"), LAYOUT).names()
    assert salted == servers_names(prompt[:-1], LAYOUT, "tenant")
    plain = names.of(request(prompt), LAYOUT).names()
    other = names.of(request(prompt), PageLayout(b"m" * 32, 16)).names()
    assert len({*salted, *plain, *other}) == 18


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_only_whole_pages_before_the_last_token_count(num_tokens: int, num_pages: int) -> None:
    pages = PageNames().of(request(tokens(num_tokens)), LAYOUT)
    assert len(pages) == len(pages.names()) == num_pages


def test_a_prompt_that_was_named_before_is_named_the_same_again() -> None:
    names = PageNames()
    prompt = tokens(3000)
    first = names.of(request(prompt), LAYOUT).names()
    changed = prompt.copy()
    changed[2000] += 1
    again = names.of(request(prompt.copy()), LAYOUT).names()
    other = names.of(request(changed), LAYOUT).names()
    assert again == first
    assert other[:125] == first[:125]
    assert other == servers_names(changed[:-1], LAYOUT)


def test_a_part_is_known_under_its_page_size_only() -> None:
    names = PageNames()
    prompt = tokens(2049)
    for page_size in (16, 8, 32):
        layout = PageLayout(LAYOUT.namespace, page_size)
        assert names.of(request(prompt), layout).names() == servers_names(prompt[:-1], layout)


def test_pages_are_computed_once_for_all_workers_of_a_layout() -> None:
    names = PageNames()
    one = request(tokens(100))
    assert names.of(one, LAYOUT) is names.of(one, PageLayout(b"n" * 32, 16))
    first = names.of(one, LAYOUT)
    names.forget(one)
    assert names.of(one, LAYOUT) is not first


def test_only_the_parts_that_are_asked_for_are_computed() -> None:
    pages = PageNames().of(request(tokens(10_000)), LAYOUT)
    next(iter(pages.parts()))
    assert len(pages._parts) == 1


def test_names_from_a_page_on_leave_out_those_before() -> None:
    pages = PageNames().of(request(tokens(2000)), LAYOUT)
    assert pages.names(100) == pages.names()[100:]


def test_what_is_remembered_is_bounded() -> None:
    names = PageNames()
    requests = [request(tokens(20)) for _ in range(1000)]
    for one in requests:
        names.of(one, LAYOUT)
    assert len(names._recent) <= 256
