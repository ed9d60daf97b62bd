"""What a test run says on a machine without the servers it needs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from tests.redis_servers import RedisServer
from tests.s3_servers import moto, seaweedfs


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)


def test_without_redis_it_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="apt-get install redis-server"):
        RedisServer(tmp_path)


def test_without_seaweedfs_it_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r'pip install -e "\.\[test\]"'), seaweedfs(tmp_path):
        pass


def test_without_moto_it_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named moto >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    expected = pytest.raises(pytest.fail.Exception, match=r'pip install -e "\.\[test\]".*No module named moto')
    with expected, moto(tmp_path):
        pass
