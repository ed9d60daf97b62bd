from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.text.replies.json_scan import JsonScan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, ascii=st.booleans(), indent=st.sampled_from([None, 1]), rest=st.text(max_size=3))
@settings(deadline=None)
def test_a_value_ends_where_it_ends(value: Any, ascii: bool, indent: int | None, rest: str) -> None:
    text = json.dumps({"k": value}, ensure_ascii=ascii, indent=indent)
    scan = JsonScan()
    assert (scan.push(text + rest), scan.verdict) == (len(text), "done")
    one_by_one = JsonScan()
    assert [one_by_one.push(character) for character in text] == [1] * len(text)
    assert one_by_one.verdict == "done"


@given(text=st.text(alphabet='{}[]:,"\\ue0-.1 tran', max_size=12))
@settings(deadline=None, max_examples=500)
def test_what_is_done_is_json_and_what_is_bad_is_not(text: str) -> None:
    scan = JsonScan()
    end = scan.push(text)
    if scan.verdict == "done":
        json.loads(text[:end])
    elif scan.verdict == "bad":
        with pytest.raises(ValueError, match=r".*"):
            json.loads(text)


def test_nesting_without_end_is_no_value() -> None:
    scan = JsonScan()
    assert scan.push("[" * 100_000) < 1000
    assert scan.verdict == "bad"
