from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pagefall.bench.demo import write_files
from pagefall.bench.demo_plan import CASES, DemoConfig
from pagefall.bench.demo_report import DemoResult, DemoRow, demo_json, demo_table, wrong_rows
from pagefall.bench.transfers import DIRECTIONS

TTFT_SECONDS = {"computed": 4.0, "device": 0.08, "host": 0.16, "storage": 0.4}

RESULT = DemoResult(
    config=DemoConfig(),
    model="fake-model",
    rows=tuple(
        DemoRow(
            case=case.name,
            wanted=case.wanted,
            ttft_seconds=TTFT_SECONDS[case.wanted],
            num_prompt_tokens=1_600,
            cached_tokens_by_tier={} if case.wanted == "computed" else {case.wanted: 1_584},
            moved_bytes=dict.fromkeys(DIRECTIONS, 0),
        )
        for case in CASES
    ),
)


def with_row(index: int, **fields: Any) -> DemoResult:
    rows = list(RESULT.rows)
    rows[index] = msgspec.structs.replace(rows[index], **fields)
    return msgspec.structs.replace(RESULT, rows=tuple(rows))


def test_the_table_has_a_line_a_case_with_its_tiers_and_its_speed_up() -> None:
    lines = demo_table(
        with_row(3, moved_bytes=dict.fromkeys(DIRECTIONS, 0) | {"host_to_device": 80_000_000})
    ).splitlines()
    assert len(lines) == 7
    assert lines[1].split() == ["cold", "4.00", "s", "1.0x", "0", "0", "0", "1,600", "-"]
    assert lines[4].split() == [
        "the",
        "first,",
        "from",
        "host",
        "160",
        "ms",
        "25.0x",
        "0",
        "1,584",
        "0",
        "16",
        "host→device",
        "80",
    ]


def test_a_row_that_another_tier_served_says_so() -> None:
    result = with_row(4, cached_tokens_by_tier={"host": 1_584})
    assert [row.case for row in wrong_rows(result.rows)] == ["the first, from storage"]
    assert demo_table(result).splitlines()[-1] == "NOT SHOWN: the first, from storage: storage expected, was host"
    assert wrong_rows(RESULT.rows) == []


def test_the_json_says_what_was_wanted_and_what_was_measured() -> None:
    document = json.loads(demo_json(with_row(1, cached_tokens_by_tier={})))
    assert document["model"] == "fake-model"
    row = document["rows"][1]
    assert (row["wanted"], row["served_by"], row["is_as_wanted"]) == ("device", "computed", False)
    assert row["speed_up"] == 50.0
    assert set(row["moved_bytes"]) == set(DIRECTIONS)


def test_the_chart_is_a_picture_of_slide_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(RESULT, tmp_path)
    picture = (tmp_path / "demo.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])) == (1920, 1080)
    assert capsys.readouterr().out.split() == [str(tmp_path / "demo.json"), str(tmp_path / "demo.png")]


def test_without_matplotlib_the_json_is_written_and_a_line_says_how_to_get_the_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pagefall.bench.demo_chart", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_files(RESULT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]
    assert "pip install 'pagefall[demo]'" in capsys.readouterr().out
