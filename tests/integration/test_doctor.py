"""A service at 3%: the doctor names the timestamp at the head of its prompts, and its advice cures it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from tests.real_server import RealServer, real_server
from tests.timestamped_service import Sent, TimePlace, send, system_prompt
from tests.tiny_models import make_tiny, make_tiny_tokenizer

from pagefall.cli.main import main
from pagefall.insight.diagnosis.report import Diagnosis

NUM_USERS = 40
NUM_TURNS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Its model is tiny, and so is its vocabulary: the prompts have some 1,000 tokens."""
    folder = make_tiny_tokenizer(make_tiny("llama", tmp_path_factory.mktemp("tiny")))
    flags = ("--model-path", str(folder), "--served-model-name", "tiny", "--max-total-tokens", "262144")
    with real_server(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server


def sent_anew(server: RealServer, place: TimePlace) -> tuple[Sent, Diagnosis]:
    """The traffic, to an empty cache, and what the server says of it alone, once it looks again."""
    httpx.post(f"{server.url}/flush_cache").raise_for_status()
    sent = send(server.url, "tiny", place, num_users=NUM_USERS, num_turns=NUM_TURNS, max_tokens=4)
    while (diagnosis := diagnosed(server)).age_seconds:
        time.sleep(0.2)
    return sent, diagnosis


def diagnosed(server: RealServer) -> Diagnosis:
    answer = httpx.get(f"{server.url}/cache/diagnose?last={NUM_USERS * NUM_TURNS}", timeout=60).raise_for_status()
    return msgspec.json.decode(answer.content, type=Diagnosis)


def test_a_service_at_3_percent_is_cured_by_the_advice(server: RealServer, capsys: pytest.CaptureFixture[str]) -> None:
    sent, diagnosis = sent_anew(server, "head")
    assert sent.hit_rate < 0.04
    assert diagnosis.hit_rate == pytest.approx(sent.hit_rate)
    first = diagnosis.losses[0]
    assert (first.cause, first.is_measured) == ("volatile_text", False)
    assert "a timestamp at character 38 of message 0 (system)" in first.evidence.text
    assert first.evidence.place is not None
    assert (first.evidence.place.message_index, first.evidence.place.char_offset) == (0, 38)
    assert "2026-03-14 09:" in first.evidence.examples[0]
    assert "into the last user message" in first.advice
    assert first.seconds is not None
    assert diagnosis.attainable is not None
    assert diagnosis.attainable > 0.78

    assert main(["doctor", "--url", server.url, "--last", str(NUM_USERS * NUM_TURNS)]) == 0
    printed = capsys.readouterr().out
    assert "1. Text that changes from prompt to prompt stands in front of text that does not" in printed
    assert "A timestamp at character 38 of message 0 (system)" in printed

    cured, diagnosis = sent_anew(server, "last-message")
    assert cured.hit_rate > 0.78
    assert diagnosis.hit_rate == pytest.approx(cured.hit_rate)
    assert "volatile_text" not in [loss.cause for loss in diagnosis.losses]
    assert system_prompt() not in msgspec.json.encode(diagnosis).decode()
