from __future__ import annotations

import msgspec
import pytest

from pagefall.bench.demo_plan import CASES, DemoConfig, Source, check_sizes, fillers, host_tokens, lifetimes, source
from pagefall.errors import ConfigError
from pagefall.messages import Tier

DEFAULT = DemoConfig()


class Lru:
    """A pool of tokens that forgets whole prompts, the least recently used one first."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self.prompts: dict[str, int] = {}

    def use(self, name: str, num_tokens: int) -> None:
        self.prompts.pop(name, None)
        self.prompts[name] = num_tokens
        while sum(self.prompts.values()) > self._num_tokens:
            del self.prompts[next(iter(self.prompts))]


def served_from(device: Lru, host: Lru, name: str) -> Source:
    if name in device.prompts:
        return "device"
    return "host" if name in host.prompts else "computed"


@pytest.mark.parametrize(
    "config",
    [
        DEFAULT,
        DemoConfig(prompt_tokens=1_000, max_total_tokens=8_192),
        DemoConfig(hicache_ratio=4.0, prompt_tokens=6_000),
    ],
)
def test_on_two_lru_pools_every_case_is_served_as_it_should_be(config: DemoConfig) -> None:
    check_sizes(config)
    device, host = Lru(config.max_total_tokens), Lru(host_tokens(config))
    num_fillers = 0
    for cases in lifetimes(CASES):
        if cases[0].before == "restart":
            device, host = Lru(config.max_total_tokens), Lru(host_tokens(config))
        for case in cases:
            for num_tokens in fillers(case.before, config):
                num_fillers += 1
                for pool in (device, host):
                    pool.use(f"filler {num_fillers}", num_tokens)
            document = f"document {case.document}"
            in_memory = served_from(device, host, document)
            assert in_memory == ("computed" if case.wanted == "storage" else case.wanted), case.name
            for pool in (device, host):
                pool.use(document, config.prompt_tokens)


def test_no_filler_is_longer_than_the_documents() -> None:
    for case in CASES:
        assert max(fillers(case.before, DEFAULT), default=0) <= DEFAULT.prompt_tokens


def test_the_restart_begins_a_second_life_with_the_last_case() -> None:
    assert [len(cases) for cases in lifetimes(CASES)] == [5, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_total_tokens": 3_500}, "--max-total-tokens: 3500 have no room"),
        ({"hicache_ratio": 1.0}, "--hicache-ratio: 1 makes a host pool of 6144 tokens"),
    ],
)
def test_pools_that_cannot_show_the_tiers_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sizes(msgspec.structs.replace(DEFAULT, **change))


@pytest.mark.parametrize(
    ("by_tier", "expected"),
    [
        ({}, "computed"),
        ({"device": 90, "host": 0, "storage": 0}, "device"),
        ({"device": 16, "host": 80}, "host"),
        ({"storage": 40}, "computed"),
        ({"host": 16, "storage": 60}, "storage"),
    ],
)
def test_a_prompt_is_served_by_the_source_of_most_of_its_tokens(by_tier: dict[Tier, int], expected: Source) -> None:
    assert source(100, by_tier) == expected
