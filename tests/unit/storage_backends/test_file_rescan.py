"""When a file store looks at its folder again."""

from __future__ import annotations

from pagefall_storage.file_rescan import INTERVAL_SECONDS, RescanSchedule


def schedule(*, seconds: float = 0.0) -> RescanSchedule:
    return RescanSchedule(max_bytes=1600, now=0.0, seconds=seconds)


def test_a_rescan_is_due_before_evicting() -> None:
    assert schedule().is_due(now=1, is_evicting=True)
    assert not schedule().is_due(now=1, is_evicting=False)


def test_a_rescan_is_due_after_a_while() -> None:
    assert not schedule().is_due(now=INTERVAL_SECONDS, is_evicting=False)
    assert schedule().is_due(now=INTERVAL_SECONDS + 1, is_evicting=False)


def test_a_rescan_is_due_after_a_sixteenth_of_the_quota_was_written() -> None:
    due = schedule()
    due.note_written(100)
    assert not due.is_due(now=1, is_evicting=False)
    due.note_written(1)
    assert due.is_due(now=1, is_evicting=False)
    due.note_scanned(now=1, seconds=0)
    assert not due.is_due(now=1, is_evicting=False)


def test_rescans_take_no_more_than_a_twentieth_of_the_time() -> None:
    due = schedule(seconds=2)
    assert not due.is_due(now=39, is_evicting=True)
    assert due.is_due(now=41, is_evicting=True)


def test_without_a_quota_only_time_counts() -> None:
    due = RescanSchedule(max_bytes=None, now=0.0, seconds=0.0)
    due.note_written(10**15)
    assert not due.is_due(now=1, is_evicting=False)
