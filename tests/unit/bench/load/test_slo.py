from __future__ import annotations

from typing import Any

import pytest

from pagefall.bench.load.slo import Slo, parse_slo
from pagefall.errors import ConfigError

from .samples import failed_sample, sample


def test_limits_are_read() -> None:
    assert parse_slo("ttft=0.5, itl=0.05,e2e=10") == Slo(ttft=0.5, itl=0.05, e2e=10.0)
    assert parse_slo("e2e=3") == Slo(e2e=3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not ttft=, itl= or e2e="),
        ("tpot=1", "'tpot=1' is not ttft="),
        ("ttft", "ttft: '' is not a number"),
        ("ttft=fast", "ttft: 'fast' is not a number of seconds"),
        ("ttft=0", "ttft: 0 is no limit"),
        ("ttft=nan", "ttft: nan is no limit"),
        ("ttft=1,ttft=2", "ttft stands there twice"),
    ],
)
def test_what_is_no_limit_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--slo: {message}"):
        parse_slo(text)


@pytest.mark.parametrize(
    ("slo", "changes", "is_met"),
    [
        (Slo(ttft=0.2), {}, True),
        (Slo(ttft=0.19), {}, False),
        (Slo(itl=0.11), {}, True),
        (Slo(itl=0.09), {}, False),
        (Slo(itl=0.09), {"gaps_seconds": (), "num_output_tokens": 1}, True),
        (Slo(e2e=0.5), {}, True),
        (Slo(e2e=0.3), {}, False),
        (Slo(ttft=0.5, e2e=0.3), {}, False),
        (Slo(e2e=0.5), {"due_at": 0.8}, False),
    ],
)
def test_a_request_keeps_every_limit_or_none_is_kept(slo: Slo, changes: dict[str, Any], is_met: bool) -> None:
    assert slo.is_met(sample(**changes)) is is_met


def test_a_failed_request_is_never_good() -> None:
    assert not Slo().is_met(failed_sample())
