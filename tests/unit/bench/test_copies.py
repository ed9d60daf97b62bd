from __future__ import annotations

import pytest

from pagefall.bench.copies import CopiesBenchConfig, bench_copies
from pagefall.cli.copies import parse_copies
from pagefall.cli.main import main
from pagefall.errors import ConfigError


def test_each_length_of_run_has_a_row_with_both_directions(capsys: pytest.CaptureFixture[str]) -> None:
    config = CopiesBenchConfig(num_pages=64, run_pages=(64, 8), repeats=3, num_layers=1)
    assert bench_copies(config) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "64 pages of 12,288 bytes, GB/s, median of 3"
    rows = [line.split() for line in lines[3:]]
    assert [row[0] for row in rows] == ["64", "8"]
    for _, plain, down, down_ratio, up, up_ratio in rows:
        assert float(down_ratio) == pytest.approx(float(down) / float(plain), abs=0.2)
        assert float(up_ratio) == pytest.approx(float(up) / float(plain), abs=0.2)


def test_the_flags_are_the_configurations(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--num-pages 8 --run-pages 8,1 --repeats 2 --num-layers 1 --num-kv-heads 2 --head-dim 8 --page-size 4"
    expected = CopiesBenchConfig(
        num_pages=8, run_pages=(8, 1), repeats=2, num_layers=1, num_kv_heads=2, head_dim=8, page_size=4
    )
    assert parse_copies(flags.split(), {}) == expected
    assert main(["bench", "copies", *flags.split()]) == 0
    assert "8 pages of 256 bytes" in capsys.readouterr().out


def test_runs_longer_than_all_pages_are_refused() -> None:
    with pytest.raises(ConfigError, match="--run-pages 9: more than --num-pages 8"):
        bench_copies(CopiesBenchConfig(num_pages=8, run_pages=(9,)))
