"""docker/verify.py, as far as it goes without Docker."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
from tests.deployment_files import DOCKER, REPOSITORY


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCKER))
    return importlib.import_module("verify")


def failing() -> str:
    raise ConnectionError("nobody there")


def test_a_check_that_fails_is_told_and_counted_and_the_next_is_made(
    verify: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    report = verify.Report()
    report.check("first", failing)
    report.check("second", lambda: "seen")
    report.skip("third", "not here")
    assert (report.num_failed, report.num_passed) == (1, 1)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("FAILED  first: ConnectionError: nobody there")
    assert second.startswith("ok      second: seen")
    assert third.startswith("skipped third: not here")


def test_it_types_the_curls_of_the_readme_at_its_own_address(verify: ModuleType) -> None:
    commands = verify.readme_commands((REPOSITORY / "README.md").read_text(), "127.0.0.1:7")
    assert commands[0] == ["curl", "http://127.0.0.1:7/health"]
    assert commands[-1][1] == "http://127.0.0.1:7/v1/chat/completions"
    assert all(command[0] == "curl" for command in commands)


def test_what_never_comes_true_is_a_failure_that_says_what_was_seen_last(verify: ModuleType) -> None:
    with pytest.raises(AssertionError, match="a server: not within 0 s; last: nobody there"):
        verify.wait_for("a server", failing, 0)
