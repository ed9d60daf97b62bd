"""The memory of what was cached: bounded, and right about what it remembers."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagefall.cache.changes import TierChange
from pagefall.cache.history import PrefixHistory
from pagefall.messages import RequestId

ROOT = b"r" * 32


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def keys(*numbers: int) -> bytes:
    return b"".join(map(key, numbers))


def make(max_tokens: int = 1000, max_pages: int = 100) -> PrefixHistory:
    return PrefixHistory(page_size=1, max_tokens=max_tokens, max_pages=max_pages)


def test_a_page_has_a_fate_only_while_no_tier_has_it() -> None:
    history = make()
    history.absorb([TierChange("device", keys(1, 2))], now=1.0, owner=None)
    assert history.fate(key(1)) is None
    history.absorb([TierChange("device", keys(1), "pool_full", is_gone=False)], now=2.0, owner=None)
    assert history.fate(key(1)) is None
    history.absorb([TierChange("host", keys(1), "pool_full", is_gone=True, is_stored=True)], now=3.0, owner=None)
    fate = history.fate(key(1))
    assert fate is not None
    assert fate == ("host", 3.0, "pool_full", True)
    history.absorb([TierChange("device", keys(1))], now=4.0, owner=None)
    assert history.fate(key(1)) is None


def test_who_computed_a_page_owns_it_until_another_uses_it() -> None:
    history = make()
    one = history.begin(RequestId("one"), ROOT, np.arange(4, dtype=np.uint32))
    history.absorb([TierChange("device", keys(1, 2))], now=1.0, owner=one)
    assert history.owner(key(2)) is one
    other = history.begin(RequestId("other"), ROOT, np.arange(5, dtype=np.uint32))
    history.own(other, key(2))
    assert history.owner(key(2)) is other
    assert history.owner(key(1)) is one
    assert [sequence.request_id for sequence in history.latest(ROOT, 8)] == ["other", "one"]


def test_an_answer_makes_its_sequence_longer_and_a_forgotten_one_stays_empty() -> None:
    history = make(max_tokens=10)
    one = history.begin(RequestId("one"), ROOT, np.arange(4, dtype=np.uint32))
    history.extend(one, np.arange(6, dtype=np.uint32))
    assert len(one.token_ids) == 6
    history.begin(RequestId("other"), ROOT, np.arange(9, dtype=np.uint32))
    assert len(one.token_ids) == 0
    history.extend(one, np.arange(7, dtype=np.uint32))
    assert len(one.token_ids) == 0
    assert [sequence.request_id for sequence in history.latest(ROOT, 8)] == ["other"]


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=300), st.integers(0, 20))
def test_what_is_said_agrees_with_a_memory_without_limits(events: list[tuple[int, bool]], max_pages: int) -> None:
    history = make(max_pages=max_pages)
    gone: dict[int, float] = {}
    for now, (page, is_gone) in enumerate(events):
        change = TierChange("device", keys(page), "flushed" if is_gone else None, is_gone)
        history.absorb([change], now=float(now), owner=None)
        if is_gone:
            gone[page] = float(now)
        else:
            gone.pop(page, None)
        assert len(history._fates._young) + len(history._fates._old) <= max_pages
    for page in range(41):
        fate = history.fate(key(page))
        assert fate is None or fate.at == gone[page]
    if max_pages > 1 and events and events[-1][1]:
        assert history.fate(key(events[-1][0])) is not None
