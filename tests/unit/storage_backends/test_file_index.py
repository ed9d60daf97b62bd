"""What a file store knows: quota, watermark, order of use, and rescans that meet changes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pagefall_storage.file_index import Index, LruValues
from pagefall_storage.protocol import Key

A, B, C, D = (Key(name) for name in "abcd")
PLENTY = 10**9


def index_of(*values: tuple[Key, int], max_bytes: int | None = None, min_free_bytes: int = 0) -> Index:
    """The values used longest ago come first."""
    return Index(LruValues(values), max_bytes=max_bytes, min_free_bytes=min_free_bytes)


def test_room_is_made_by_the_values_used_longest_ago() -> None:
    index = index_of((A, 10), (B, 10), (C, 10), max_bytes=30)
    index.add(A, 10)
    assert index.reserve(15, free_bytes=PLENTY) == [(B, 10), (C, 10)]
    assert index.num_evicted == 2
    assert index.num_bytes == 10


def test_what_fits_evicts_nothing() -> None:
    index = index_of((A, 10), max_bytes=30)
    assert index.reserve(20, free_bytes=PLENTY) == []


def test_a_value_that_can_never_fit_evicts_nothing() -> None:
    index = index_of((A, 10), (B, 10), max_bytes=30)
    assert index.reserve(31, free_bytes=PLENTY) is None
    assert index.num_bytes == 20


def test_reserved_room_is_not_given_twice() -> None:
    index = index_of((A, 10), max_bytes=30)
    assert index.reserve(20, free_bytes=PLENTY) == []
    assert index.reserve(10, free_bytes=PLENTY) == [(A, 10)]
    assert index.reserve(1, free_bytes=PLENTY) is None
    index.release(20)
    assert index.reserve(20, free_bytes=PLENTY) == []


def test_the_watermark_evicts_and_then_refuses() -> None:
    index = index_of((A, 10), (B, 10), min_free_bytes=100)
    assert index.reserve(5, free_bytes=105) == []
    index.release(5)
    assert index.reserve(5, free_bytes=100) == [(A, 10)]
    index.release(5)
    assert index.reserve(5, free_bytes=94) is None
    assert index.reserve(5, free_bytes=95) == [(B, 10)]


def test_a_value_that_could_not_be_deleted_is_there_again_and_tried_last() -> None:
    index = index_of((A, 10), (B, 10), max_bytes=20)
    assert index.reserve(10, free_bytes=PLENTY) == [(A, 10)]
    index.release(10)
    index.restore(A, 10)
    assert (index.num_bytes, index.num_evicted) == (20, 0)
    assert index.reserve(10, free_bytes=PLENTY) == [(B, 10)]


def test_a_folder_over_its_quota_is_trimmed() -> None:
    index = index_of((A, 10), (B, 10), (C, 10), max_bytes=15)
    assert index.trim() == [(A, 10), (B, 10)]
    assert index_of((A, 10)).trim() == []


def test_a_rescan_brings_what_others_did_and_keeps_what_happened_meanwhile() -> None:
    index = index_of((A, 10), (B, 10), (C, 10))
    index.begin_rescan()
    index.add(A, 11)
    index.remove(B)
    index.end_rescan(LruValues([(A, 10), (B, 10), (D, 7)]))
    assert [index.get(key) for key in (A, B, C, D)] == [11, None, None, 7]
    assert index.num_bytes == 18


def test_a_failed_rescan_changes_nothing() -> None:
    index = index_of((A, 10))
    index.begin_rescan()
    index.end_rescan(None)
    assert index.get(A) == 10


class IndexMachine(RuleBasedStateMachine):
    """An index beside a model of its folder, in which others delete and write too."""

    MAX_BYTES = 100

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of(max_bytes=self.MAX_BYTES)
        self.folder: dict[Key, int] = {}
        self.being_written: list[tuple[Key, int]] = []
        self.scanned: dict[Key, int] | None = None
        self.others_wrote = False

    keys = st.sampled_from([A, B, C, D])
    sizes = st.integers(0, 60)

    @rule(key=keys, size=sizes)
    def begin_to_write(self, key: Key, size: int) -> None:
        victims = self.index.reserve(size, free_bytes=PLENTY)
        if victims is not None:
            for victim, _ in victims:
                self.folder.pop(victim, None)
            self.being_written.append((key, size))

    @precondition(lambda self: self.being_written)
    @rule(is_stored=st.booleans())
    def end_writing(self, is_stored: bool) -> None:
        key, size = self.being_written.pop(0)
        self.index.release(size)
        if is_stored:
            self.folder[key] = size
            self.index.add(key, size)

    @rule(key=keys)
    def delete(self, key: Key) -> None:
        self.folder.pop(key, None)
        self.index.remove(key)

    @rule(key=keys)
    def another_deletes(self, key: Key) -> None:
        self.folder.pop(key, None)

    @rule(key=keys, size=sizes)
    def another_writes(self, key: Key, size: int) -> None:
        self.folder[key] = size
        self.others_wrote = True

    @precondition(lambda self: self.scanned is None)
    @rule()
    def begin_rescan(self) -> None:
        self.index.begin_rescan()
        self.scanned = dict(self.folder)

    @precondition(lambda self: self.scanned is not None)
    @rule()
    def end_rescan(self) -> None:
        assert self.scanned is not None
        self.index.end_rescan(LruValues(self.scanned.items()))
        self.scanned = None
        for victim, _ in self.index.trim():
            self.folder.pop(victim, None)

    @invariant()
    def counters_add_up_and_are_never_negative(self) -> None:
        assert self.index.num_bytes == sum(self.index.get(key) or 0 for key in (A, B, C, D)) >= 0

    @invariant()
    def the_quota_holds_for_what_is_known(self) -> None:
        reserved = sum(size for _, size in self.being_written)
        assert self.index.num_bytes + reserved <= self.MAX_BYTES

    @invariant()
    def the_quota_holds_in_the_folder_while_nobody_else_writes(self) -> None:
        if not self.others_wrote:
            assert sum(self.folder.values()) + sum(size for _, size in self.being_written) <= self.MAX_BYTES


TestIndexMachine = IndexMachine.TestCase


def test_removing_the_oldest_of_nothing_is_an_error() -> None:
    with pytest.raises(KeyError):
        LruValues().remove_oldest()
