from __future__ import annotations

import random
import unicodedata

import pytest
from tests.unit.insight.diagnosis.traffic import causes, chat, diagnosed, the_loss, words

from pagefall.insight.diagnosis.whitespace import plain, shown

RNG = random.Random(2)
RULES = "\n".join(words(RNG, 12) for _ in range(25)) + "\nEt voilà."


@pytest.mark.parametrize(
    ("other", "shows"),
    [
        (RULES.replace("\n", "\r\n"), "␍␊"),
        (RULES.replace("\n", " \n"), "·␊"),
        (RULES.replace("\n", "\n\n"), "␊␊"),
        ("\ufeff" + RULES, "<U+FEFF>"),
        (unicodedata.normalize("NFD", "Déjà vu. " + RULES), "<U+0301>"),
    ],
)
def test_two_versions_of_one_prompt_are_shown_with_what_one_does_not_see(other: str, shows: str) -> None:
    one = "Déjà vu. " + RULES if "U+0301" in shows else RULES
    # Every tenant's prompt exists in both: half of them could have been found.
    prompts = [
        chat(f"{words(random.Random(tenant), 60)}\n{version}", words(RNG, 10))
        for tenant in range(12)
        for version in (one, other)
    ]
    loss = the_loss(diagnosed(prompts), "whitespace")
    assert any(shows in example for example in loss.evidence.examples)
    assert len(set(loss.evidence.examples)) == 2
    assert 0.6 * 12 * len(RULES) / 4 < loss.num_tokens < 1.2 * 12 * len(RULES) / 4


def test_versions_that_differ_in_a_letter_are_no_drift() -> None:
    other = RULES.replace("a", "o", 1)
    prompts = [chat(version, words(RNG, 10)) for version in (RULES, other) for _ in range(10)]
    assert "whitespace" not in causes(diagnosed(prompts))


def test_one_version_alone_is_no_drift() -> None:
    prompts = [chat(RULES.replace("\n", "\r\n"), words(RNG, 10)) for _ in range(20)]
    assert causes(diagnosed(prompts)) == []


def test_drift_behind_a_timestamp_is_found_as_well() -> None:
    versions = (RULES, RULES.replace("\n", "\r\n"))
    prompts = [
        chat(
            f"It is 02:{number:02}:00.\n{words(random.Random(number // 2), 60)}\n{versions[number % 2]}", words(RNG, 10)
        )
        for number in range(24)
    ]
    assert set(causes(diagnosed(prompts))) == {"volatile_text", "whitespace"}


def test_plain_text_has_one_form() -> None:
    assert plain("a \r\n\tb\u00a0c\ufeff") == plain("a b c")
    assert plain("e\u0301") == plain("\u00e9")
    assert plain("a b") != plain("ab")


def test_what_is_far_away_is_not_shown() -> None:
    assert shown("x" * 100, 50) == "…" + "x" * 32 + "…"
    assert shown("a b", 0) == "a·b"
