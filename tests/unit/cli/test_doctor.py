"""`pagefall doctor`: what it asks of a server, and how a diagnosis reads."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from pagefall.cli.doctor import as_json, ask
from pagefall.cli.doctor_flags import DoctorConfig
from pagefall.cli.doctor_text import render
from pagefall.cli.flags import options
from pagefall.cli.main import main
from pagefall.cli.serve_flags import SERVE_FLAGS
from pagefall.errors import ConfigError, PagefallError
from pagefall.insight.diagnosis.losses import ADVICE
from pagefall.insight.diagnosis.report import Diagnosis, Evidence, Loss, Place, TierGain


def diagnosis(**fields: Any) -> Diagnosis:
    values: dict[str, Any] = {
        "verdict": "The hit rate is 3.0%; an infinite cache would reach 4.0%.",
        "num_requests": 120,
        "num_prompt_tokens": 60_000,
        "seconds": 3660.0,
        "page_size": 16,
        "hit_rate": 0.03,
        "is_measured": True,
        "ceiling": 0.04,
        "of_ceiling": 0.75,
        "attainable": 0.9,
        "losses": (),
        "tiers": (),
    }
    return Diagnosis(**{**values, **fields})


LOSS = Loss(
    cause="volatile_text",
    num_tokens=51_000,
    seconds=12.0,
    is_measured=False,
    evidence=Evidence(
        text="a timestamp at character 40 of message 0 (system)",
        place=Place(message_index=0, role="system", char_offset=40),
        examples=("09:00\n", "09:01"),
        num_prompts=120,
    ),
    advice="Move it into the last user message.",
)


def asked(config: DoctorConfig, answer: httpx.Response, seen: list[httpx.Request] | None = None) -> Diagnosis:
    def handler(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return answer

    return ask(config, transport=httpx.MockTransport(handler))


def test_it_asks_the_server_with_the_key_and_the_span() -> None:
    seen: list[httpx.Request] = []
    config = DoctorConfig(url="http://host:1/v1/", api_key="sk", last=5, seconds=2.5)
    answer = httpx.Response(200, content=msgspec.json.encode(diagnosis(losses=(LOSS,))))
    assert asked(config, answer, seen).losses == (LOSS,)
    [request] = seen
    assert str(request.url) == "http://host:1/cache/diagnose?last=5&seconds=2.5"
    assert request.headers["authorization"] == "Bearer sk"


def test_what_the_server_says_is_the_error() -> None:
    answer = httpx.Response(503, json={"error": {"message": "Another diagnosis is being made."}})
    with pytest.raises(PagefallError, match="status 503: Another diagnosis is being made"):
        asked(DoctorConfig(), answer)


@pytest.mark.parametrize("body", [b"<html>", b"{}"])
def test_an_answer_that_is_no_diagnosis_is_an_error(body: bytes) -> None:
    with pytest.raises(PagefallError, match="is no diagnosis"):
        asked(DoctorConfig(), httpx.Response(200, content=body))


def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1: " in capsys.readouterr().err


def test_a_url_that_is_none_is_the_flags_fault() -> None:
    with pytest.raises(ConfigError, match="--url"):
        ask(DoctorConfig(url="localhost:30000"))


def test_a_misspelt_flag_names_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--lats", "5"]) == 2
    assert "did you mean --last?" in capsys.readouterr().err


def test_the_verdict_is_first_then_the_losses_with_what_to_do() -> None:
    text = render(diagnosis(losses=(LOSS, msgspec.structs.replace(LOSS, cause="capacity", seconds=None))))
    lines = text.splitlines()
    assert lines[0] == "The hit rate is 3.0%; an infinite cache would reach 4.0%."
    assert "120 requests with 60,000 prompt tokens in 61 min, pages of 16" in lines
    assert "1. Text that changes from prompt to prompt stands in front of text that does not" in lines
    assert "   51,000 tokens, 85.0% of all, about 12.0 s of computing (estimated)" in lines
    assert "   A timestamp at character 40 of message 0 (system)." in lines
    assert "     '09:00\\n'" in lines
    assert "   What to do: Move it into the last user message." in lines
    assert text.index("1. ") < text.index("2. The cache is too small")


def test_an_answer_that_was_given_before_says_how_old_it_is() -> None:
    assert "as of" not in render(diagnosis())
    assert "pages of 16; as of 4.2 s ago" in render(diagnosis(age_seconds=4.2))


def test_what_larger_tiers_would_bring_is_a_table() -> None:
    gain = TierGain(tier="host", num_pages=1024, num_extra_tokens=5_000, num_nearer_tokens=0)
    assert "host" in render(diagnosis(tiers=(gain,)))
    nothing = msgspec.structs.replace(gain, num_extra_tokens=0)
    assert "Twice" not in render(diagnosis(tiers=(nothing,)))


def test_no_traffic_is_two_lines() -> None:
    empty = diagnosis(verdict="There are no requests to look at.", num_requests=0, num_prompt_tokens=0, seconds=None)
    assert render(empty).splitlines()[0] == "There are no requests to look at."


def test_json_is_what_the_server_sends() -> None:
    assert msgspec.json.decode(as_json(diagnosis(losses=(LOSS,))), type=Diagnosis) == diagnosis(losses=(LOSS,))


def test_flags_that_advice_names_exist() -> None:
    known = set(options(SERVE_FLAGS)) | {"delete"}
    named = {name for advice in ADVICE.values() for name in re.findall(r"--([a-z-]+)", advice)}
    assert named <= known
