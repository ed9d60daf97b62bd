"""How far two runs of tokens go together."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from pagefall.cache.neighbour import tokens_of
from pagefall.common_tokens import num_common_tokens


def plain(ours: list[int], theirs: list[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(ours), len(theirs)))


def common(ours: list[int], theirs: list[int]) -> int:
    return num_common_tokens(np.array(ours, dtype=np.uint32), np.array(theirs, dtype=np.uint32))


TOKENS = st.lists(st.integers(0, 3), max_size=20)


@given(num_shared=st.integers(0, 1000), ours=TOKENS, theirs=TOKENS)
@example(num_shared=64, ours=[1], theirs=[2])
@example(num_shared=192, ours=[], theirs=[2])
@example(num_shared=447, ours=[1], theirs=[2])
def test_they_share_what_the_plain_form_counts(num_shared: int, ours: list[int], theirs: list[int]) -> None:
    shared = list(range(num_shared))
    assert common(shared + ours, shared + theirs) == plain(shared + ours, shared + theirs)


def test_bytes_are_seen_as_whole_tokens() -> None:
    assert tokens_of(b"\1\0\0\0\2\0\0\0\3").tolist() == [1, 2]
    assert tokens_of(memoryview(b"")).tolist() == []


class Watched(np.ndarray[Any, Any]):
    """Notes how many tokens are compared."""

    num_compared = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        Watched.num_compared += len(inputs[0])
        return getattr(ufunc, method)(*(np.asarray(each) for each in inputs), **kwargs)


def test_tokens_behind_the_first_that_differs_are_hardly_looked_at() -> None:
    ours = np.arange(30_000, dtype=np.uint32)
    for num_shared, at_most in ((0, 64), (63, 64), (64, 192), (1_000, 4_000)):
        theirs = ours.copy()
        theirs[num_shared] += 1
        Watched.num_compared = 0
        assert num_common_tokens(ours.view(Watched), theirs) == num_shared
        assert 0 < Watched.num_compared <= at_most
