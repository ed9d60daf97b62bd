"""What a server counted, as losses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.insight.diagnosis.traffic import causes, chat, counted, diagnosed, missed, the_loss, words

from pagefall.insight.diagnosis.observations import Capacities, Observation
from pagefall.insight.diagnosis.report import Cause

RULES = words(random.Random(5), 200)


def served(*misses: Any, num: int = 10) -> list[Observation]:
    """One prompt, again and again; the last page is never cached."""
    prompt = chat(RULES, "What now?")
    num_missed = sum(miss.num_tokens for miss in misses)
    return [
        counted(prompt, *misses, missed("page_tail", 16), sources={"device": len(prompt.token_ids) - 16 - num_missed})
        for _ in range(num)
    ]


@pytest.mark.parametrize(
    ("reason", "fields", "cause"),
    [
        ("evicted", {"tier": "device", "cause": "pool_full"}, "capacity"),
        ("evicted", {"tier": "device", "cause": "flushed"}, "flushed"),
        ("evicted", {"tier": "storage", "cause": "gone_from_store"}, "gone_from_store"),
        ("store_down", {"tier": "storage", "detail": "it failed"}, "store_down"),
        ("timed_out", {"tier": "storage"}, "store_slow"),
        ("slower_than_recompute", {"tier": "storage", "load_seconds": 4.0, "compute_seconds": 1.0}, "store_slow"),
        ("corrupt", {"tier": "storage"}, "store_damaged"),
        ("no_room", {"tier": "host"}, "no_room"),
        ("copy_failed", {}, "no_room"),
        ("other_namespace", {}, "other_model"),
        ("below_threshold", {}, "below_threshold"),
        ("cache_disabled", {}, "cache_disabled"),
    ],
)
def test_a_miss_that_need_not_have_been_is_a_loss(reason: str, fields: dict[str, Any], cause: Cause) -> None:
    diagnosis = diagnosed(served(missed(reason, 64, **fields)))
    loss = the_loss(diagnosis, cause)
    assert (loss.num_tokens, loss.is_measured, loss.evidence.num_prompts) == (640, True, 10)
    assert loss.advice
    assert diagnosis.is_measured


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("never_seen", {}),
        ("diverged", {}),
        ("unreached", {}),
        ("slower_than_recompute", {"tier": "host"}),
    ],
)
def test_a_miss_that_had_to_be_is_none(reason: str, fields: dict[str, Any]) -> None:
    assert causes(diagnosed(served(missed(reason, 64, **fields)))) == []


@pytest.mark.parametrize("reason", ["below_threshold", "cache_disabled"])
def test_of_what_nobody_had_seen_before_nothing_was_lost(reason: str) -> None:
    heads = [words(random.Random(number), 200) for number in range(5)]
    prompts = [counted(chat(head, "What now?"), missed(reason, 256)) for head in heads]
    assert causes(diagnosed(prompts)) == []
    again = diagnosed([*prompts, prompts[0]])
    assert the_loss(again, "below_threshold" if reason == "below_threshold" else "cache_disabled").num_tokens == 256


def test_what_costs_little_is_not_mentioned() -> None:
    assert causes(diagnosed(served(missed("store_down", 64), num=1) + served(num=60))) == []


def test_the_failure_is_told() -> None:
    loss = the_loss(diagnosed(served(missed("store_down", 64, detail="it had failed before"))), "store_down")
    assert loss.evidence.text == "640 tokens: it had failed before"


def test_seconds_are_tokens_at_the_servers_pace() -> None:
    loss = the_loss(diagnosed(served(missed("store_down", 64)), seconds_per_token=0.01), "store_down")
    assert loss.seconds == pytest.approx(6.4)
    assert the_loss(diagnosed(served(missed("store_down", 64))), "store_down").seconds is None


def test_losses_are_ranked_by_tokens() -> None:
    diagnosis = diagnosed(served(missed("corrupt", 32), missed("store_down", 80), missed("no_room", 48)))
    assert causes(diagnosis) == ["store_down", "no_room", "store_damaged"]


def test_capacity_comes_with_what_each_tier_would_bring() -> None:
    heads = [words(random.Random(number), 200) for number in range(8)]
    prompts = [counted(chat(heads[i % 8], "?"), missed("evicted", 128, tier="host")) for i in range(40)]
    pages = len(prompts[0].token_ids) // 16
    sizes = Capacities(device_pages=2 * pages, host_pages=4 * pages)
    diagnosis = diagnosed(prompts, capacities=sizes)
    device, host = diagnosis.tiers
    assert (device.num_extra_tokens, device.num_nearer_tokens) == (0, 0)
    assert host.num_extra_tokens > 0
    assert "twice the host tier would find" in the_loss(diagnosis, "capacity").advice.lower()
