from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.real_server import real_server

from pagefall.bench.load.command import bench_load
from pagefall.bench.load.document import LoadDocument
from pagefall.bench.load.samples import RequestSample
from pagefall.cli.bench_load import parse_load

PAGE = 16


def load(path: Path, *argv: str) -> LoadDocument:
    assert bench_load(parse_load([*argv, "--json", str(path)], {})) == 0
    return msgspec.json.decode(path.read_bytes(), type=LoadDocument)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one server for all of this, with little device memory and some of the host's."""
    flags = ["--max-total-tokens", "1024", "--context-length", "512"]
    folder = tmp_path_factory.mktemp("server")
    with real_server(folder, *flags, "--enable-hierarchical-cache", "--hicache-ratio", "2") as server:
        yield server.url


def test_a_chat_with_real_answers_hits_what_was_said(url: str, tmp_path: Path) -> None:
    document = load(
        tmp_path / "talk.json",
        *("--url", url, "--endpoint", "chat", "--workload", "multi-turn", "--answers", "real"),
        *("--users", "2", "--turns", "3", "--first-tokens", "96", "--turn-tokens", "32", "--output-tokens", "8"),
        *("--concurrency", "2", "--warm-up", "1"),
    )
    samples = document.runs[0].samples
    _check_lengths(samples, output_tokens=8)
    later = [sample for sample in samples if sample.part != "turn 1"]
    assert len(later) == 4
    for sample in later:
        # The last page of what was said may be cut off, and an answer's text may have other tokens than were sampled.
        assert sample.cached_tokens is not None
        assert sample.num_seen_tokens - 8 - 2 * PAGE <= sample.cached_tokens < sample.num_prompt_tokens


def test_a_preset_made_small_has_the_lengths_it_aims_at(url: str, tmp_path: Path) -> None:
    document = load(
        tmp_path / "groups.json",
        *("--url", f"{url}/v1", "--preset", "sglang-generated-shared-prefix", "--scale", "0.03"),
        *("--output-tokens", "4", "--prompts-per-group", "4", "--max-concurrency", "4", "--warm-up", "0"),
    )
    samples = document.runs[0].samples
    _check_lengths(samples, output_tokens=4)
    assert [abs(sample.num_prompt_tokens - 65) <= 3 for sample in samples] == [True] * 8


def test_the_tiers_are_told_apart(url: str, tmp_path: Path) -> None:
    document = load(
        tmp_path / "tiers.json",
        *("--url", url, "--workload", "tiers", "--document-tokens", "256", "--evict-tokens", "1024"),
        *("--output-tokens", "2", "--warm-up", "0"),
    )
    by_tier = {sample.part: sample.cached_tokens_by_tier or {} for sample in document.runs[0].measured}
    assert list(by_tier) == ["cold", "same again", "new document", "after eviction"]
    assert not any(by_tier["cold"].values())
    assert not any(by_tier["new document"].values())
    assert by_tier["same again"]["device"] >= 256 - 2 * PAGE
    assert by_tier["after eviction"]["host"] >= 256 - 2 * PAGE


def _check_lengths(samples: tuple[RequestSample, ...], *, output_tokens: int) -> None:
    for sample in samples:
        assert sample.fault is None
        assert sample.num_output_tokens == output_tokens
        assert sample.ttft_seconds is not None
        assert 0 < sample.ttft_seconds <= sample.e2e_seconds
