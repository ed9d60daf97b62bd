"""The reader of PromQL that other tests rely on."""

from __future__ import annotations

from typing import Final

import pytest
from tests.promql import Matcher, complaints, live, parse

LIVE: Final = live(
    'tokens_total{source="device"} 1\ntokens_total{source="computed"} 2\nlag_bucket{le="+Inf"} 0\nup 1\n'
)


def test_names_matchers_and_grouping_are_found() -> None:
    query = parse('sum by (job, le) (rate(a:b_total{source=~"x|y", job!="{"}[5m])) / on (le) group_left sum(up) > 0.5')
    assert query.selectors == [
        ("a:b_total", [Matcher("source", "=~", "x|y"), Matcher("job", "!=", "{")]),
        ("up", []),
    ]
    assert query.labels == {"job", "le"}


def test_a_sound_query_has_no_complaints() -> None:
    query = 'histogram_quantile(0.9, sum by (le, instance) (rate(lag_bucket[5m]))) and up{job="a"} == 1'
    assert complaints(query, LIVE) == []
    assert complaints('tokens_total{source!="device"} offset 1h', LIVE) == []


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("rate(token_total[5m])", "there is no token_total"),
        ('tokens_total{tier="device"}', "tokens_total has no label tier"),
        ('tokens_total{source="host"}', "no source of tokens_total is ='host'"),
        ('tokens_total{source=~"ho.*"}', "no source of tokens_total is =~'ho.*'"),
        ('tokens_total{source!~".*"}', "no source of tokens_total is !~'.*'"),
        ("sum by (reason) (tokens_total)", "nothing has a label reason"),
    ],
)
def test_what_nothing_answers_to_is_named(query: str, complaint: str) -> None:
    assert complaints(query, LIVE) == [complaint]
