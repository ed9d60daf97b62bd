"""What `pagefall cache` is asked, and how mistakes are told, before any store is opened."""

from __future__ import annotations

import pytest

from pagefall.cli.main import main


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["stat"], "cache stat: unknown; did you mean stats?"),
        (["xyzzy"], "cache xyzzy: unknown; see --help"),
        (["stats", "--jsn"], "--jsn: unknown; did you mean --json?"),
        (
            ["stats", "--storage-backend", "fil"],
            "--storage-backend: 'fil' is not one of file, memory, redis, s3; did you mean file?",
        ),
        (["stats", "--extra-config", "/some/folder"], "--extra-config: not valid JSON"),
        (["verify", "--namespace", ""], "--namespace: the value is empty"),
        (["clear"], "cache clear: pass either --namespace PREFIX or --all"),
        (["clear", "--all", "--namespace", "ab"], "cache clear: pass either --namespace PREFIX or --all"),
        (["diff"], "cache diff: needs two namespaces or folders, before or after its flags"),
        (["diff", "--storage-backend", "file"], "cache diff: needs two namespaces or folders"),
        (["diff", "--storage-backend", "memory", "ab", "cd"], "no namespace begins with 'ab': the store has none"),
        (["diff", "ab", "cd", "--storage-backend", "memory"], "no namespace begins with 'ab': the store has none"),
        (["diff", "ab", "cd", "ef"], "unexpected argument 'ef'"),
        (["copy"], "cache copy: needs two stores, FROM and TO, before or after its flags"),
        (["copy", "--namespace", "ab"], "cache copy: needs two stores"),
        (["copy", "one", "two", "--all"], "--all: unknown"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *argv]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_commands_are_listed_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    assert "cache verify" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["stats", "verify", "clear", "diff"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["cache", command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: pagefall cache {command}" in text
    assert "--extra-config JSON|@FILE" in text


def test_copy_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["cache", "copy", "--help"])
    text = capsys.readouterr().out
    assert "usage: pagefall cache copy FROM TO" in text
    assert "--namespace PREFIX" in text
