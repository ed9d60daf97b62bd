"""docker/systemd: the unit is one that systemd takes, and it runs a command that the program takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.deployment_files import DOCKER, DRAIN_SECONDS, check_store, parsed

from pagefall.config import ServeConfig

UNIT: Final = DOCKER / "systemd" / "pagefall.service"
PROGRAM: Final = "/opt/pagefall/bin/pagefall"


def settings() -> dict[str, str]:
    """The unit's; of one that is there several times, the values with spaces between them."""
    found: dict[str, str] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found[name] = f"{found[name]} {value}" if name in found else value
    return found


def test_the_command_is_one_that_the_program_takes_with_the_example_of_a_file() -> None:
    command = settings()["ExecStart"].split()
    assert command[0] == PROGRAM
    assert command[-1] == "/etc/pagefall/pagefall.toml"
    config = parsed([*command[1:-1], str(DOCKER / "systemd" / "pagefall.toml")])
    assert isinstance(config, ServeConfig)
    check_store(config)


def test_it_may_drain_and_is_not_restarted_for_what_a_restart_cannot_mend() -> None:
    found = settings()
    assert int(found["TimeoutStopSec"]) > DRAIN_SECONDS
    assert found["Restart"] == "on-failure"
    assert found["RestartPreventExitStatus"] == "2"  # what `pagefall.cli.main` returns for a ConfigError


def test_what_it_writes_to_are_folders_that_systemd_makes_for_it() -> None:
    found = settings()
    environment = dict(word.split("=", 1) for word in found["Environment"].split())
    assert environment["PAGEFALL_CACHE_DIR"] == f"/var/cache/{found['CacheDirectory']}"
    assert environment["PAGEFALL_STORAGE_DIR"] == f"/var/lib/{found['StateDirectory']}"
    assert found["ProtectSystem"] == "strict"
    assert found["NoNewPrivileges"] == "yes"
    assert "MemoryDenyWriteExecute" not in found


def test_every_line_is_a_section_a_comment_or_a_setting() -> None:
    for line in UNIT.read_text().splitlines():
        assert re.fullmatch(r"|#.*|\[(Unit|Service|Install)\]|[A-Z][A-Za-z]+=.*", line), line


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="without systemd its lines are checked, not its words"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    there = tmp_path / "pagefall.service"
    there.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
