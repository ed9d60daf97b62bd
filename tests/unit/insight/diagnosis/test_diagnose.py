"""The diagnosis as a whole: rates, what no single prompt shows, and the words for it."""

from __future__ import annotations

import random
import time

import pytest
from tests.unit.insight.diagnosis.traffic import (
    PAGE_SIZE,
    causes,
    chat,
    counted,
    diagnosed,
    encoded,
    missed,
    text,
    the_loss,
    words,
)

from pagefall.insight.diagnosis.observations import Capacities, Observation
from pagefall.text.requests import TextPrompt

RNG = random.Random(6)
RULES = words(RNG, 250)


def asked(number: int) -> str:
    return words(random.Random(number), 12)


def test_no_requests_are_no_traffic() -> None:
    diagnosis = diagnosed([])
    assert (diagnosis.num_requests, diagnosis.losses, diagnosis.ceiling) == (0, (), None)
    assert diagnosis.verdict == "There are no requests to look at."


def test_good_traffic_is_called_good() -> None:
    first, *others = (chat(RULES, asked(number)) for number in range(40))
    num_cached = len(encoded(f"<system>\n{RULES}")) // PAGE_SIZE * PAGE_SIZE
    prompts = [counted(first), *(counted(each, sources={"device": num_cached}) for each in others)]
    diagnosis = diagnosed(prompts)
    assert diagnosis.losses == ()
    assert diagnosis.verdict.endswith("Nothing is wrong.")
    assert diagnosis.is_measured
    assert diagnosis.hit_rate is not None
    assert diagnosis.hit_rate > 0.85
    assert diagnosis.of_ceiling == pytest.approx(1, abs=0.02)


def test_traffic_that_does_not_repeat_is_called_that() -> None:
    diagnosis = diagnosed([chat(words(RNG, 150), asked(number)) for number in range(20)])
    assert causes(diagnosis) == ["does_not_repeat"]
    assert "does not repeat itself" in diagnosis.verdict
    assert "an infinite cache would reach 0.0%" in diagnosis.losses[0].evidence.text


def test_a_few_prompts_say_nothing_about_repetition() -> None:
    assert causes(diagnosed([chat(words(RNG, 150), asked(number)) for number in range(5)])) == []


def test_one_prefix_under_many_salts_is_a_loss() -> None:
    prompts = [chat(RULES, asked(number), cache_salt=f"tenant {number % 10}") for number in range(30)]
    diagnosis = diagnosed(prompts)
    loss = the_loss(diagnosis, "salts")
    num_shared = len(encoded(f"<system>\n{RULES}")) // PAGE_SIZE * PAGE_SIZE
    assert loss.num_tokens == 9 * num_shared
    assert f"{num_shared:,} tokens is cached under 10 of 10 salts" in loss.evidence.text
    assert "tenant" not in repr(loss.evidence)


def test_salts_that_share_nothing_cost_nothing() -> None:
    heads = [words(RNG, 250) for _ in range(5)]
    prompts = [chat(heads[number % 5], asked(number), cache_salt=str(number % 5)) for number in range(30)]
    assert causes(diagnosed(prompts)) == []


def test_one_prefix_on_many_workers_is_a_loss() -> None:
    prompts = [chat(RULES, asked(number), worker=f"gpu{number % 6}") for number in range(30)]
    loss = the_loss(diagnosed(prompts), "routing")
    num_shared = len(encoded(f"<system>\n{RULES}")) // PAGE_SIZE * PAGE_SIZE
    assert loss.num_tokens == 5 * num_shared
    assert "on 6 of 6 workers" in loss.evidence.text


def test_workers_with_traffic_of_their_own_are_none() -> None:
    heads = [words(RNG, 250) for _ in range(3)]
    prompts = [chat(heads[number % 3], asked(number), worker=str(number % 3)) for number in range(30)]
    assert causes(diagnosed(prompts)) == []


def test_heads_that_only_the_shared_store_knew_came_from_elsewhere() -> None:
    heads = [words(RNG, 250) for _ in range(10)]
    prompts = [counted(chat(head, "What now?"), sources={"storage": 256}) for head in heads]
    loss = the_loss(diagnosed(prompts), "routing")
    assert (loss.num_tokens, loss.is_measured, loss.seconds) == (2560, True, None)
    assert "routing" not in causes(diagnosed(prompts, num_earlier_tokens=5)), "forgotten is not never seen"


def test_heads_from_the_store_that_were_here_before_are_no_spread() -> None:
    prompts = [counted(chat(RULES, asked(number)), sources={"storage": 256 if number else 0}) for number in range(10)]
    assert "routing" not in causes(diagnosed(prompts))


def test_prompts_shorter_than_a_page_are_a_loss() -> None:
    prompts = [text("Translate to French: yes or no, please") for _ in range(40)]
    loss = the_loss(diagnosed(prompts), "too_short")
    assert "40 prompts" in loss.evidence.text or "39 prompts" in loss.evidence.text


def test_tails_of_short_prompts_are_a_loss_and_of_long_ones_not() -> None:
    short = [text("x" * 4 * 27 + f"{number:04}") for number in range(40)]
    loss = the_loss(diagnosed(short), "page_tail")
    assert loss.num_tokens == 39 * 11
    assert causes(diagnosed([text(RULES * 3 + asked(number)) for number in range(40)])) == []


def test_a_cache_that_is_too_small_is_found_by_replay() -> None:
    heads = [words(RNG, 250) for _ in range(10)]
    prompts = [chat(heads[number % 10], asked(number)) for number in range(60)]
    pages = sum(len(prompt.token_ids) // PAGE_SIZE for prompt in prompts[:10])
    small = diagnosed(prompts, capacities=Capacities(device_pages=pages * 6 // 10))
    assert not small.is_measured
    assert small.hit_rate == 0
    loss = the_loss(small, "capacity")
    assert small.tiers[0].num_extra_tokens == loss.num_tokens
    assert "Twice the device tier" in loss.advice
    large = diagnosed(prompts, capacities=Capacities(device_pages=pages * 2))
    assert causes(large) == []
    assert large.hit_rate == large.ceiling


def test_each_worker_has_the_given_size_for_itself() -> None:
    heads = [words(RNG, 250) for _ in range(10)]
    prompts = [chat(heads[number % 10], asked(number), worker=str(number % 10)) for number in range(60)]
    pages = len(prompts[0].token_ids) // PAGE_SIZE + 8
    diagnosis = diagnosed(prompts, capacities=Capacities(device_pages=pages))
    assert diagnosis.hit_rate == diagnosis.ceiling
    assert causes(diagnosis) == []


def test_a_store_without_a_known_size_forgets_nothing() -> None:
    heads = [words(RNG, 250) for _ in range(10)]
    prompts = [chat(heads[number % 10], asked(number)) for number in range(60)]
    sizes = Capacities(device_pages=40, host_pages=80, has_storage=True)
    device, host = diagnosed(prompts, capacities=sizes).tiers
    assert (device.num_extra_tokens, host.num_extra_tokens) == (0, 0)


def test_what_was_not_looked_at_is_said() -> None:
    assert diagnosed([chat(RULES, "?")], num_earlier_tokens=7).num_earlier_tokens == 7


def test_the_span_is_from_the_first_request_to_the_last() -> None:
    assert diagnosed([chat(RULES, asked(i), time=100.0 + i) for i in range(4)]).seconds == 3
    assert diagnosed([chat(RULES, asked(0))]).seconds is None


def test_a_server_that_has_counted_nothing_yet_has_no_losses() -> None:
    assert diagnosed([counted(chat(RULES, "?"), missed("never_seen", 320))]).losses == ()


def test_a_prompt_without_tokens_or_text_does_no_harm() -> None:
    lone_surrogate = Observation(token_ids=encoded("x" * 200), prompt=TextPrompt("\ud800" * 200))
    prompts = [Observation(token_ids=encoded("")), text(""), chat(""), lone_surrogate]
    assert diagnosed(prompts * 3).num_requests == 12


def test_thousands_of_prompts_take_seconds() -> None:
    prompts = [chat(f"Now: {number:06}.\n{RULES}", words(random.Random(number), 60)) for number in range(1_000)]
    started = time.process_time()
    diagnosis = diagnosed(prompts)
    assert time.process_time() - started < 20, "it got very slow"
    assert causes(diagnosis) == ["volatile_text"]
