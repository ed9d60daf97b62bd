"""`pagefall backends`: what it prints."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.unit.storage_backends.plug_ins import install

from pagefall.cli.main import main

Run = tuple[int, str, str]


@pytest.fixture
def broken_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "my-plug-in", "plug_in_broken_for_cli", "1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> Run:
    status = main(["backends", *argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_backend_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys)
    assert status == 0
    assert lines(text)[0] == "backend from capabilities"
    assert f"file pagefall {version('pagefall')} durable, shared, evicts, last_used" in lines(text)
    assert f"s3 pagefall {version('pagefall')} durable, shared" in lines(text)


def test_a_named_backend_has_its_settings_and_what_it_says_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, "s3")
    assert status == 0
    assert "bucket text required" in lines(text)
    assert "num_threads whole number, 1 to 256 8" in lines(text)
    assert "path_style true or false or null null" in lines(text)
    assert "connect_timeout_seconds number, above 0 2.0" in lines(text)
    assert "`bucket` exists already." in text
    assert "max_bytes bytes or null null" in lines(run(capsys, "file")[1])


@pytest.mark.usefixtures("broken_plug_in")
def test_a_plug_in_that_cannot_be_imported_is_shown_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys)
    assert status == 0
    assert "mine my-plug-in 1.5 -" in lines(text)
    assert any(line.startswith("mine: ") and "ZeroDivisionError" in line for line in lines(text))
    assert run(capsys, "mine")[0] == 1


@pytest.mark.usefixtures("broken_plug_in")
def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = run(capsys, "--json")
    assert status == 0
    by_name = {each["name"]: each for each in json.loads(text)}
    assert by_name.keys() >= {"file", "memory", "redis", "s3", "mine"}
    assert by_name["mine"]["config_schema"] is None
    assert "ZeroDivisionError" in by_name["mine"]["problem"]
    schema = by_name["redis"]["config_schema"]
    assert schema["required"] == ["url"]
    assert by_name["redis"]["capabilities"] == ["durable", "shared", "evicts", "last_used"]
    assert [each["name"] for each in json.loads(run(capsys, "file", "--json")[1])] == ["file"]


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "nope")
    assert status == 2
    assert error.startswith("pagefall: error: backends: 'nope' is not one of file, memory, redis, s3")


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(capsys, "--jsn")
    assert status == 2
    assert "did you mean --json?" in error
