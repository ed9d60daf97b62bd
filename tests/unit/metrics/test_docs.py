"""docs/metrics.md names what there is, and its queries can be asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, get_args

import pytest
from tests.promql import complaints, live
from tests.unit.metrics.fresh_server import fresh_metrics

from pagefall.messages import MissReason

pytestmark = pytest.mark.anyio

PAGE: Final = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
QUERIES: Final = re.findall(r"^```promql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BRACKETS: Final = {")": "(", "]": "[", "}": "{"}


def rows(pattern: str) -> list[list[str]]:
    """The cells of the tables' lines whose first one is `pattern` in backticks."""
    lines = re.findall(rf"^\| `{pattern}` .*\|$", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


async def test_every_metric_is_in_one_table_with_its_type_and_labels() -> None:
    text = await fresh_metrics()
    types = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    labels: dict[str, set[str]] = {}
    for sample, its_labels in live(text).items():
        name = re.sub("_(bucket|count|sum)$", "", sample)
        labels.setdefault(name, set()).update(its_labels.keys() - {"le"})
    told = {row[0].strip("`"): (row[1], set(re.findall(r"\w+", row[2]))) for row in rows(r"pagefall_\w+")}
    assert told == {name: (types[name], labels[name]) for name in types}
    assert len(rows(r"pagefall_\w+")) == len(types)


async def test_every_value_of_a_label_is_explained() -> None:
    for name, labels in live(await fresh_metrics()).items():
        for value in {value for label in labels.keys() - {"le", "model", "version"} for value in labels[label]}:
            assert f"`{value}`" in PAGE or value.startswith("corrupt:"), f"{name}: {value}"


def test_every_reason_of_a_miss_has_its_line() -> None:
    reasons = [row[0].strip("`") for row in rows("[a-z_]+") if not row[0].startswith("`pagefall")]
    assert reasons == list(get_args(MissReason))


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_asks_for_what_the_server_tells(query: str) -> None:
    assert complaints(query, live(await fresh_metrics())) == []
    open_brackets: list[str] = []
    for character in re.sub(r'"[^"]*"', "", query):
        if character in BRACKETS.values():
            open_brackets.append(character)
        elif character in BRACKETS:
            assert open_brackets, query
            assert open_brackets.pop() == BRACKETS[character]
    assert open_brackets == []


def test_what_an_operator_needs_is_among_the_queries() -> None:
    asked = " ".join(QUERIES)
    for name in ("prompt_tokens_total", "known_tokens_total", "missed_tokens_total", "saved_prefill_seconds_total"):
        assert f"pagefall_{name}" in asked
    for name in ("time_to_first_token_seconds_bucket", "storage_breaker_state", "storage_used_bytes"):
        assert f"pagefall_{name}" in asked
