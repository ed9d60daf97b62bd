"""`pagefall doctor prompts`: a log of requests, without a server, weights or torch."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.byte_tokenizer import byte_tokenizer
from tests.tiny_models import make_tiny_tokenizer

from pagefall.cli.doctor_flags import PromptsConfig
from pagefall.cli.doctor_prompts import Log, _positionals, doctor_prompts, read_log, traffic_of
from pagefall.cli.request_lines import LineReader
from pagefall.errors import ConfigError, ModelError
from pagefall.insight.diagnosis.report import Diagnosis
from pagefall.insight.records import RequestRecord
from pagefall.insight.request_log import ended_line
from pagefall.messages import RequestId
from pagefall.text.requests import ChatMessage, ChatPrompt, Tool

RULES = "Be kind and brief, and never promise what is not in these rules. " * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and no weights."""
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    with path.open("w") as file:
        for number in range(20):
            messages = [
                {"role": "system", "content": f"It is 09:{number:02}:00.\n{RULES}"},
                {"role": "user", "content": f"What about number {number}?"},
            ]
            file.write(json.dumps({"time": number, "messages": messages}) + "\n")
    return path


def test_it_names_the_cause_without_torch(log_file: Path, tokenizer: Path) -> None:
    script = (
        "import sys; from pagefall.__main__ import main; "
        f"status = main(['doctor', 'prompts', {str(log_file)!r}, '--tokenizer-path', {str(tokenizer)!r}, '--json']); "
        "print(sys.modules.get('torch'), status, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    diagnosis = msgspec.json.decode(done.stdout, type=Diagnosis)
    assert [loss.cause for loss in diagnosis.losses] == ["volatile_text"]
    assert "time of day at character 6 of message 0" in diagnosis.losses[0].evidence.text
    assert (diagnosis.num_requests, diagnosis.seconds) == (20, 19)
    assert done.stderr == "None 0\n"


def test_it_prints_for_people_and_takes_sizes(
    log_file: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--tokenizer-path", str(tokenizer), "--device-tokens", "1000", "--page-size", "8", "--redact-prompts"]
    assert doctor_prompts([*flags, str(log_file)]) == 0
    out = capsys.readouterr().out
    assert "1. Text that changes from prompt to prompt" in out
    assert "by replay" in out
    assert "pages of 8" in out
    assert "09:0" not in out


def test_a_request_log_shows_that_tools_come_in_another_order_each_time(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    tools = [Tool(name=name, description=f"What {name} does, {index}. " * 20) for index, name in enumerate("abcd")]
    path = tmp_path / "requests.jsonl"
    with path.open("wb") as file:
        for number in range(40):
            record = RequestRecord(
                request_id=RequestId(f"r{number}"),
                prompt=ChatPrompt(
                    messages=(ChatMessage("system", RULES), ChatMessage("user", f"What about number {number}?")),
                    tools=tuple(rng.sample(tools, len(tools))),
                ),
                token_ids=np.arange(9, dtype=np.uint32),
                cache_salt="",
                max_tokens=1,
                arrived_at=1000.0 + number,
                began_at=float(number),
            )
            file.write(msgspec.json.encode(ended_line(record, redact_prompts=False)) + b"\n")
    assert doctor_prompts([str(path), "--tokenizer-path", str(tokenizer), "--json"]) == 0
    diagnosis = msgspec.json.decode(capsys.readouterr().out, type=Diagnosis)
    [loss] = [loss for loss in diagnosis.losses if loss.cause == "json_order"]
    assert "the tools" in loss.evidence.text


def lines(*bodies: Any) -> io.BytesIO:
    return io.BytesIO(
        b"".join(body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n" for body in bodies)
    )


def read(file: io.BytesIO, **config: Any) -> Log:
    return read_log(file, LineReader(byte_tokenizer(), 16), PromptsConfig(**config), name="log")


def test_a_bad_line_is_an_error_with_its_number_and_field() -> None:
    file = lines({"prompt": "x"}, b"\n", {"prompt": 3})
    with pytest.raises(ConfigError, match=r"log, line 3: prompt: Expected .* --skip-bad"):
        read(file)


def test_bad_lines_may_be_skipped_and_are_counted() -> None:
    log = read(lines({"prompt": "x"}, b"{\n", {"prompt": 3}, {"prompt": "y"}), skip_bad=True)
    assert (len(log.observations), log.num_bad) == (2, 2)
    assert log.bad.startswith("line 2: not JSON")


def test_the_last_requests_are_kept_and_the_tokens_of_the_others_counted() -> None:
    log = read(lines(*({"prompt": f"{number:036}"} for number in range(10))), max_tokens=300)
    assert [bytes(each.token_ids.tolist())[-1:] for each in log.observations] == [b"7", b"8", b"9"]
    assert log.num_earlier_tokens == 7 * 36
    assert len(read(lines({"prompt": "x" * 500}), max_tokens=10).observations) == 1


def test_requests_are_in_the_order_of_their_times_if_all_have_one() -> None:
    log = read(lines({"prompt": "b", "time": 2}, {"prompt": "a", "time": 1}))
    assert [each.time for each in log.observations] == [1, 2]
    log = read(lines({"prompt": "b", "time": 2}, {"prompt": "a"}, {"prompt": "c", "time": 1}))
    assert [each.time for each in log.observations] == [2, None, 1]


def test_sizes_in_tokens_are_pages() -> None:
    sizes = traffic_of(Log([]), PromptsConfig(device_tokens=1600, storage_tokens=3)).capacities
    assert (sizes.device_pages, sizes.host_pages, sizes.storage_pages, sizes.has_storage) == (100, None, 1, True)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["a.jsonl", "--json"], ["a.jsonl"]),
        (["--page-size", "8", "a.jsonl"], ["a.jsonl"]),
        (["--page-size=8", "a.jsonl"], ["a.jsonl"]),
        (["--json", "-"], ["-"]),
        (["a", "--skip-bad", "b"], ["a", "b"]),
        (["--json"], []),
    ],
)
def test_the_file_may_stand_anywhere(argv: list[str], names: list[str]) -> None:
    assert _positionals(argv)[0] == names


@pytest.mark.parametrize("argv", [[], ["a", "b"]])
def test_one_file_is_needed(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="needs one FILE"):
        doctor_prompts(argv)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        doctor_prompts([str(tmp_path / "none.jsonl")])


def test_a_tokenizer_that_is_not_there_is_named(log_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--tokenizer-path .* does not exist"):
        doctor_prompts([str(log_file), "--tokenizer-path", str(tmp_path / "none")])
