from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pagefall.insight.line_writer import LineWriter, refuse_unwritable

PATIENCE_SECONDS = 10.0


class Disk:
    """Writes as it is told: `gate` closed it hangs, `failing` it fails after so many bytes of a line."""

    def __init__(self) -> None:
        self.gate, self.begun, self.failed = threading.Event(), threading.Event(), threading.Event()
        self.gate.set()
        self.failing: int | None = None
        self.at_most = 1 << 20

    def write(self, fd: int, data: memoryview) -> int:
        self.begun.set()
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.failing is not None:
            if self.failing == 0:
                self.failed.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            num_bytes = os.write(fd, data[: self.failing])
            self.failing = 0
            return num_bytes
        return os.write(fd, data[: self.at_most])


@contextmanager
def writing(path: Path | str, disk: Disk, *, capacity: int = 100) -> Iterator[LineWriter[str]]:
    writer = LineWriter[str](
        str(path),
        str.encode,
        lambda num_lines: f"lost {num_lines}".encode(),
        thread_name="test-lines",
        capacity=capacity,
        write=disk.write,
    )
    try:
        yield writer
    finally:
        disk.gate.set()
        assert writer.close(PATIENCE_SECONDS)


def test_lines_are_appended_in_order_and_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    with writing(path, Disk()) as writer:
        for number in range(50):
            writer.put(str(number))
    assert path.read_text().splitlines() == ["old", *map(str, range(50))]


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with writing(tmp_path / "log", Disk()):
        pass
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) & 0o077 == 0


def test_lines_that_a_disk_takes_in_pieces_are_whole(tmp_path: Path) -> None:
    disk = Disk()
    disk.at_most = 3
    with writing(tmp_path / "log", disk) as writer:
        writer.put("a long line")
        writer.put("another")
    assert (tmp_path / "log").read_text() == "a long line\nanother\n"


def test_a_disk_that_hangs_holds_nobody_up_and_what_was_dropped_is_said(tmp_path: Path) -> None:
    disk = Disk()
    disk.gate.clear()
    with writing(tmp_path / "log", disk, capacity=3) as writer:
        writer.put("first")
        assert disk.begun.wait(PATIENCE_SECONDS)
        for number in range(10):
            writer.put(str(number))
    assert (tmp_path / "log").read_text().splitlines() == ["first", "lost 7", "0", "1", "2"]


def test_the_end_waits_only_so_long_for_a_disk_that_hangs(tmp_path: Path) -> None:
    disk = Disk()
    disk.gate.clear()
    with writing(tmp_path / "log", disk) as writer:
        writer.put("first")
        assert disk.begun.wait(PATIENCE_SECONDS)
        assert not writer.close(0.0)
        writer.put("too late")
    assert (tmp_path / "log").read_text().splitlines()[:1] == ["first"]


def test_a_disk_that_fails_within_a_line_loses_it_and_spoils_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pagefall")
    disk = Disk()
    with writing(tmp_path / "log", disk) as writer:
        disk.failing = 3
        writer.put("broken line")
        assert disk.failed.wait(PATIENCE_SECONDS)
        until(lambda: writer._num_lost == 1)
        disk.failing = None
        writer.put("whole")
    assert (tmp_path / "log").read_text().splitlines() == ["bro", "lost 1", "whole"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "No space left on device" in said[0]
    assert said[1].endswith("is written again")


def test_a_full_device_is_outlived(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    with writing(path, Disk()) as writer:
        for _ in range(3):
            writer.put("lost")
        until(lambda: writer._num_lost == 3)
        path.unlink()
        writer.put("kept")
    assert path.read_text().splitlines() == ["lost 3", "kept"]


def test_a_disk_that_fails_for_good_does_not_keep_the_end_waiting(tmp_path: Path) -> None:
    with writing("/dev/full", Disk()) as writer:
        writer.put("lost")


def test_a_file_that_was_moved_away_or_removed_is_made_again(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    with writing(path, Disk()) as writer:
        writer.put("one")
        until(lambda: path.read_text() == "one\n")
        path.rename(old)
        writer.put("two")
        until(lambda: path.exists() and path.read_text() == "two\n")
        path.unlink()
        writer.put("three")
    assert (old.read_text(), path.read_text()) == ("one\n", "three\n")


def test_standard_output_is_written_to(capfd: pytest.CaptureFixture[str]) -> None:
    with writing("-", Disk()) as writer:
        writer.put("a line")
    assert capfd.readouterr().out == "a line\n"
    os.fstat(1)  # and left open


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "log"
    with pytest.raises(OSError, match="nowhere") as raised, writing(path, Disk()):
        pass
    message = str(refuse_unwritable(str(path), raised.value, "--request-log"))
    assert message.startswith(f"--request-log: {path} cannot be opened: No such file or directory; make the folder")
    assert "name a file" in str(refuse_unwritable(str(tmp_path), IsADirectoryError(21, "Is a directory"), "--x"))


def until(condition: object) -> None:
    """Fails if it does not come true in time."""
    assert callable(condition)
    for _ in range(int(PATIENCE_SECONDS / 0.001)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it did not happen")
