from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagefall.bench.replay import Run, Sample
from pagefall.bench.report import Figure, table
from pagefall.bench.workload_report import ceiling, hit_rate, part_figures, run_figures, share_of_ceiling


def sample(part: str = "turn 1", **fields: Any) -> Sample:
    defaults = Sample(
        part=part,
        num_prompt_tokens=100,
        num_seen_tokens=80,
        num_output_tokens=3,
        ttft_seconds=0.5,
        gaps_seconds=(0.01, 0.03),
        cached_tokens=60,
        cached_tokens_by_tier={"device": 40, "host": 20},
    )
    return msgspec.structs.replace(defaults, **fields)


def rows(figures: list[Figure], target: str) -> dict[str, float | None]:
    return {figure.row.name: figure.value(target) for figure in figures}


def test_rates_are_over_all_tokens_not_means_of_requests() -> None:
    samples = [sample(num_prompt_tokens=100, cached_tokens=0), sample(num_prompt_tokens=300, cached_tokens=300)]
    assert hit_rate(samples) == 75.0
    assert ceiling(samples) == 40.0


def test_the_share_of_the_ceiling_is_unknown_where_nothing_could_be_hit() -> None:
    assert share_of_ceiling([sample(num_seen_tokens=0)]) is None
    assert share_of_ceiling([sample()]) == 75.0


def test_a_run_is_summed_up_in_its_units() -> None:
    run = Run(seconds=2.0, samples=(sample(ttft_seconds=0.1), sample(ttft_seconds=0.3), sample(ttft_seconds=0.8)))
    found = rows(run_figures({"serve": run}), "serve")
    assert found["TTFT mean"] == pytest.approx(400)
    assert found["TTFT p50"] == pytest.approx(300)
    assert found["TTFT p95"] == pytest.approx(750)
    assert found["ITL mean"] == pytest.approx(20)
    assert found["requests a second"] == 1.5
    assert found["output"] == 4.5
    assert (found["prompts"], found["cached"]) == (300, 180)
    assert (found["cached, device"], found["cached, host"], found["cached, storage"]) == (120, 60, 0)
    assert (found["hit rate"], found["ceiling"], found["hit rate of the ceiling"]) == (60.0, 80.0, 75.0)


def test_a_server_that_does_not_count_cached_tokens_gets_dashes_and_a_note() -> None:
    peer = Run(seconds=1.0, samples=(sample(cached_tokens=None, cached_tokens_by_tier=None),))
    figures = run_figures({"self": Run(seconds=1.0, samples=(sample(),)), "peer": peer})
    found = rows(figures, "peer")
    assert found["hit rate"] is found["cached, host"] is None
    assert found["ceiling"] == 80.0
    assert table(figures, ["self", "peer"]).count("the server does not count them") == 1


def test_each_part_has_its_own_rows_in_the_order_of_sending() -> None:
    run = Run(seconds=1.0, samples=(sample(num_seen_tokens=0, cached_tokens=0), sample("turn 2", ttft_seconds=0.05)))
    found = rows(part_figures({"serve": run}), "serve")
    assert list(found) == [
        f"{part}: {row}" for part in ("turn 1", "turn 2") for row in ("TTFT mean", "hit rate", "ceiling")
    ]
    assert found["turn 1: ceiling"] == 0
    assert found["turn 2: TTFT mean"] == pytest.approx(50)
    assert found["turn 2: hit rate"] == 60.0
