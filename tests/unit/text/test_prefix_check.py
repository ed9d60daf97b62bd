from __future__ import annotations

import pytest
from tests import chat_templates
from tests.byte_tokenizer import byte_tokenizer

from pagefall.cli.doctor_template import doctor_template, render
from pagefall.text.prefix_check import Case, PrefixReport, check_prefixes
from pagefall.text.replies.formats import reply_format
from pagefall.text.tokenizer import Tokenizer


def report_on(tokenizer: Tokenizer) -> PrefixReport:
    replies = reply_format(
        "auto", "auto", chat_template=tokenizer.chat_template, special_token_id=tokenizer.special_token_id
    )
    return check_prefixes(tokenizer, replies)


def shares(report: PrefixReport) -> dict[str, bool]:
    return {case.name: case.num_shared == case.num_tokens > 0 for case in report.cases}


def test_the_embedded_models_turns_are_whole_prefixes(embedded: Tokenizer) -> None:
    report = report_on(embedded)
    assert shares(report) == {"plain": True, "tool call": True, "parallel calls": True}
    assert not report.knows_tools


@pytest.mark.parametrize("template", [chat_templates.CHATML_WITH_TOOLS, chat_templates.PRINTS_STRINGS])
def test_a_template_that_writes_calls_as_the_model_does_is_friendly(template: str) -> None:
    report = report_on(byte_tokenizer(template))
    assert all(shares(report).values())
    assert report.replies.tools == "hermes"


def test_a_template_that_always_thinks_is_friendly_where_thoughts_come_back() -> None:
    report = report_on(byte_tokenizer(chat_templates.THINKS))
    found = shares(report)
    assert (found["thought given back"], found["thought left out"], found["plain"]) == (True, False, False)
    [left_out] = [case for case in report.cases if case.name == "thought left out"]
    assert left_out.written.startswith("<think>")


def test_a_template_that_trims_says_what_it_changed() -> None:
    trims = "{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}{% endfor %}[assistant]"
    [case, *_] = report_on(byte_tokenizer(trims)).cases
    assert case.num_shared < case.num_tokens
    assert "the template writes" in render(
        PrefixReport(
            replies=report_on(byte_tokenizer(trims)).replies, knows_tools=False, writes_date=True, cases=(case,)
        )
    )


def test_a_template_that_refuses_is_told_as_such() -> None:
    refuses = "{{ raise_exception('never') }}"
    report = report_on(byte_tokenizer(refuses))
    assert all("never" in (case.refusal or "") for case in report.cases)
    text = render(
        PrefixReport(
            replies=report.replies, knows_tools=True, writes_date=False, cases=(Case(name="plain", refusal="never"),)
        )
    )
    assert "refused: never" in text


def test_the_doctor_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_template(["--chat-template", "{{ messages[0].content }}{# tools #}"]) == 0
    printed = capsys.readouterr().out
    assert "knows tools" in printed
    assert doctor_template(["--json"]) == 0
    assert '"cases"' in capsys.readouterr().out
