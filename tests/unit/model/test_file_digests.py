"""A file's digest is its content's, read once as long as the file stays the same."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pagefall.model.file_digests import FileDigests


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests"


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def remember(folder: Path, digest: str) -> None:
    """Overwrites what is known, so that a test sees whether it is believed."""
    [known] = folder.iterdir()
    known.write_text(digest)


def test_a_digest_is_sha_256_and_read_only_once(weights: Path, folder: Path) -> None:
    assert FileDigests(folder).of(weights) == sha256(b"weights")
    remember(folder, "ab" * 32)
    assert FileDigests(folder).of(weights) == bytes.fromhex("ab" * 32)


def test_a_file_changed_in_place_is_read_again_even_with_its_old_time(weights: Path, folder: Path) -> None:
    FileDigests(folder).of(weights)
    stat = weights.stat()
    with weights.open("r+b") as file:
        file.write(b"WEIGHTS")
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert FileDigests(folder).of(weights) == sha256(b"WEIGHTS")


def test_a_link_and_its_target_are_one_file(weights: Path, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(weights)
    FileDigests(folder).of(link)
    FileDigests(folder).of(weights)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("content", ["", "ab", "ab" * 31 + "xy", "é"])
def test_a_damaged_memory_is_not_believed(weights: Path, folder: Path, content: str) -> None:
    FileDigests(folder).of(weights)
    remember(folder, content)
    assert FileDigests(folder).of(weights) == sha256(b"weights")
    remember(folder, "ab" * 32)  # it was repaired, not left
    assert FileDigests(folder).of(weights) == bytes.fromhex("ab" * 32)


def test_a_folder_that_cannot_be_written_costs_only_time(
    weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert FileDigests(tmp_path / "file").of(weights) == sha256(b"weights")
    assert "the next start reads them again" in caplog.text
