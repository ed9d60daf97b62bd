from __future__ import annotations

import json

import pytest

from pagefall.bench.report import Figure, Row, align, summarise, table, to_json

TTFT = Row("cold TTFT", "ms")


def test_the_median_and_the_99th_percentile_interpolate_between_neighbours() -> None:
    assert summarise([3.0, 1.0, 2.0], "median") == 2.0
    assert summarise([1.0, 2.0], "median") == 1.5
    assert summarise(range(101), "p99") == 99.0
    assert summarise([0.0, 100.0], "p99") == pytest.approx(99.0)
    assert summarise([7.0], "p99") == 7.0


def test_with_a_peer_the_table_ends_in_the_ratio() -> None:
    lines = table([Figure(TTFT, {"self": (100.0, 200.0, 150.0), "peer": (300.0,)})], ["self", "peer"]).splitlines()
    assert lines[0].split() == ["self", "peer", "self/peer", "unit"]
    assert lines[1].split() == ["cold", "TTFT", "150", "300", "0.50", "ms"]


def test_of_several_targets_each_is_set_against_the_last() -> None:
    figure = Figure(TTFT, {"serve": (100.0,), "restarted": (50.0,), "against": (400.0,)})
    lines = table([figure], ["serve", "restarted", "against"]).splitlines()
    assert lines[0].split() == ["serve", "restarted", "against", "serve/against", "restarted/against", "unit"]
    assert lines[1].split() == ["cold", "TTFT", "100", "50.0", "400", "0.25", "0.12", "ms"]


def test_nothing_is_written_as_0() -> None:
    assert table([Figure(TTFT, {"self": (0.0,)})], ["self"]).splitlines()[1].split() == ["cold", "TTFT", "0", "ms"]


def test_the_mean_the_95th_percentile_and_the_worst_are_statistics_too() -> None:
    assert summarise([1.0, 2.0, 6.0], "mean") == 3.0
    assert summarise(range(101), "p95") == 95.0
    assert summarise([1.0, 9.0, 2.0], "max") == 9.0


def test_without_a_peer_there_is_no_ratio() -> None:
    text = table([Figure(TTFT, {"self": (0.1234,)})], ["self"])
    assert text.splitlines()[1].split() == ["cold", "TTFT", "0.123", "ms"]


def test_a_target_without_samples_has_a_dash_and_its_note() -> None:
    text = table([Figure(TTFT, {"self": (1.0,), "peer": ()}, {"peer": "too long for it"})], ["self", "peer"])
    assert text.splitlines()[1].split() == ["cold", "TTFT", "1.00", "-", "-", "ms"]
    assert text.splitlines()[2] == "cold TTFT, peer: too long for it"


def test_columns_line_up() -> None:
    assert align([["a", "1"], ["bbb", "22"]]) == ["a     1", "bbb  22"]


def test_the_json_keeps_every_sample() -> None:
    figure = Figure(TTFT, {"self": (1.0, 3.0)})
    document = json.loads(to_json([figure], {"self": "m at http://x"}, {"repeats": 2}))
    assert document["settings"] == {"repeats": 2}
    assert document["targets"] == {"self": "m at http://x"}
    assert document["figures"][0]["values"] == {"self": 2.0}
    assert document["figures"][0]["samples"] == {"self": [1.0, 3.0]}
