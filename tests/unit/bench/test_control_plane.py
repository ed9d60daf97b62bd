from __future__ import annotations

import pytest

from pagefall.bench.cache_timing import time_cache
from pagefall.bench.control_plane import ControlPlaneBenchConfig, bench_control_plane
from pagefall.bench.scheduler_timing import time_scheduler
from pagefall.cli.bench import parse_control_plane


def test_every_operation_is_timed() -> None:
    timing = time_cache(page_size=16, num_cached_tokens=4000, num_prompt_tokens=3000, repeats=3)
    assert min(timing.match_us, timing.insert_us, timing.evict_us) > 0


@pytest.mark.parametrize("num_running", [1, 5])
def test_every_kind_of_step_is_timed(num_running: int) -> None:
    timing = time_scheduler(page_size=16, num_running=num_running, num_steps=4)
    assert min(timing.decode_us, timing.queued_us, timing.churn_us) > 0


def test_the_cache_table_leaves_out_prompts_larger_than_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--cached-tokens 1000,4000 --prompt-tokens 500,2000 --running 2 --repeats 2"
    config = parse_control_plane(flags.split(), {})
    assert config == ControlPlaneBenchConfig(
        cached_tokens=(1000, 4000), prompt_tokens=(500, 2000), running=(2,), repeats=2
    )
    bench_control_plane(config)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["1,000", "cached", "4,000", "cached"] in rows
    cells = {tuple(row[:2]): row[3:] for row in rows if len(row) == 5}
    for operation in ("match", "insert", "evict"):
        assert "-" not in cells[operation, "500"]
        assert cells[operation, "2,000"][0] == "-" != cells[operation, "2,000"][1]
    assert rows[-2][:2] == ["2", "running"]
