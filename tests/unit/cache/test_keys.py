from __future__ import annotations

import hashlib
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagefall.cache.keys import framed, page_keys, root_key, token_bytes

TOKENS = np.array([1, 2, 3, 70_000, 5, 6, 7, 8, 9], dtype=np.uint32)


def test_the_root_key_is_sha256_over_length_framed_fields() -> None:
    framed_by_hand = struct.pack("<Q", 2) + b"ns" + struct.pack("<Q", 4) + b"salt" + struct.pack("<Q", 3) + b"ada"
    assert root_key(b"ns", "salt", "ada") == hashlib.sha256(framed_by_hand).digest()


def test_page_keys_chain_over_complete_pages_as_little_endian_u32() -> None:
    root = root_key(b"ns", "")
    first = hashlib.sha256(root + struct.pack("<4I", 1, 2, 3, 70_000)).digest()
    second = hashlib.sha256(first + struct.pack("<4I", 5, 6, 7, 8)).digest()
    assert page_keys(root, TOKENS, 4) == [first, second]


def test_a_sequence_shorter_than_a_page_has_no_key() -> None:
    assert page_keys(root_key(b"ns", ""), TOKENS, 16) == []
    assert page_keys(root_key(b"ns", ""), TOKENS[:0], 1) == []


def test_keys_depend_on_salt_adapter_and_namespace() -> None:
    roots = [root_key(b"ns", ""), root_key(b"ns", "a"), root_key(b"ns", "", "a"), root_key(b"ns2", "")]
    assert len({page_keys(root, TOKENS, 4)[-1] for root in roots}) == len(roots)


def test_moving_a_character_across_fields_changes_the_root_key() -> None:
    assert root_key(b"ns", "ab", "c") != root_key(b"ns", "a", "bc")


def test_a_lone_surrogate_is_a_salt_like_any_other() -> None:
    assert root_key(b"ns", "\ud800") != root_key(b"ns", "\ud801")


def test_token_bytes_are_little_endian_whatever_the_array_is() -> None:
    assert token_bytes(TOKENS.astype(">u4")[::2]) == struct.pack("<5I", 1, 3, 5, 7, 9)


@given(st.lists(st.binary(max_size=3), max_size=4), st.lists(st.binary(max_size=3), max_size=4))
def test_framing_tells_any_two_lists_apart(one: list[bytes], other: list[bytes]) -> None:
    assert (framed(one) == framed(other)) == (one == other)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_pages_share_a_key_exactly_when_everything_up_to_their_end_is_equal(
    one: list[int], other: list[int], page_size: int
) -> None:
    root = root_key(b"ns", "")
    keys = [page_keys(root, np.array(tokens, dtype=np.uint32), page_size) for tokens in (one, other)]
    for page, (key, other_key) in enumerate(zip(*keys, strict=False)):
        stop = (page + 1) * page_size
        assert (key == other_key) == (one[:stop] == other[:stop])
