from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.insight.diagnosis.traffic import PAGE_SIZE, causes, chat, counted, the_loss, words

from pagefall.insight.diagnosis.diagnose import diagnose
from pagefall.insight.diagnosis.observations import Observation, sections
from pagefall.insight.diagnosis.served import traffic_of
from pagefall.insight.records import RequestRecord
from pagefall.messages import ControllerStats, PoolStats, RequestId, SchedulerStats
from pagefall.text.requests import ChatMessage, ChatPrompt, Tool, ToolCall
from pagefall.text.tool_schema import as_function

PAGES = PoolStats(total=100, free=100, leased=0, cached=0, pinned=0)


def stats(**fields: Any) -> SchedulerStats:
    return SchedulerStats(num_running=0, num_queued=0, device_pages=PAGES, **fields)


def record(number: int, **fields: Any) -> RequestRecord:
    observation = counted(chat("system " * 100, f"question {number}"))
    return RequestRecord(
        request_id=RequestId(f"r{number}"),
        prompt=observation.prompt,
        token_ids=observation.token_ids,
        cache_salt="",
        max_tokens=1,
        arrived_at=1000.0 + number,
        began_at=float(number),
        report=observation.report,
        **fields,
    )


def test_requests_are_in_the_order_of_their_arrival() -> None:
    traffic = traffic_of([record(2), record(0), record(1)], stats(), None, page_size=PAGE_SIZE)
    assert [observation.time for observation in traffic.observations] == [1000, 1001, 1002]


def test_tiers_have_their_sizes_and_a_store_with_a_limit_too() -> None:
    controller = ControllerStats(
        breaker="closed", storage_num_pages=10, storage_used_bytes=1_000, storage_limit_bytes=50_000
    )
    sizes = traffic_of([], stats(host_pages=PAGES), controller, page_size=PAGE_SIZE).capacities
    assert (sizes.device_pages, sizes.host_pages, sizes.storage_pages, sizes.has_storage) == (100, 100, 500, True)
    sizes = traffic_of([], stats(), ControllerStats(), page_size=PAGE_SIZE).capacities
    assert (sizes.host_pages, sizes.storage_pages, sizes.has_storage) == (None, None, False)
    sizes = traffic_of([], stats(), ControllerStats(breaker="open"), page_size=PAGE_SIZE).capacities
    assert (sizes.storage_pages, sizes.has_storage) == (None, True)


def test_the_pace_is_what_the_server_estimates_of_what_it_saved() -> None:
    traffic = traffic_of([], stats(num_cached_tokens=200, saved_seconds=1.0), None, page_size=PAGE_SIZE)
    assert traffic.seconds_per_token == pytest.approx(0.005)


def test_before_it_has_saved_anything_times_to_the_first_token_tell() -> None:
    records = [record(number, first_token_at=number + 2.0) for number in range(3)]
    traffic = traffic_of(records, stats(), None, page_size=PAGE_SIZE)
    assert traffic.seconds_per_token == pytest.approx(2 / len(records[0].token_ids))
    assert traffic_of([], stats(), None, page_size=PAGE_SIZE).seconds_per_token is None


def test_the_pace_is_the_least_that_anything_says() -> None:
    dear_hits = stats(num_cached_tokens=16, saved_seconds=1.0, num_computed_tokens=1_000, forward_seconds=2.0)
    assert traffic_of([], dear_hits, None, page_size=PAGE_SIZE).seconds_per_token == pytest.approx(0.002)
    much_decoding = stats(num_cached_tokens=1_000, saved_seconds=1.0, num_computed_tokens=100, forward_seconds=60.0)
    assert traffic_of([], much_decoding, None, page_size=PAGE_SIZE).seconds_per_token == pytest.approx(0.001)


def test_tokens_of_requests_that_were_forgotten_are_counted() -> None:
    one = record(0)
    traffic = traffic_of([one], stats(num_prompt_tokens=len(one.token_ids) + 77), None, page_size=PAGE_SIZE)
    assert traffic.num_earlier_tokens == 77


def with_tools(number: int, tools: list[Tool]) -> RequestRecord:
    rng = random.Random(number)
    sent = chat(words(random.Random(0), 200), words(rng, 10), tools=[as_function(tool) for tool in tools])
    assert isinstance(sent.prompt, ChatPrompt)
    return RequestRecord(
        request_id=RequestId(f"r{number}"),
        prompt=ChatPrompt(messages=sent.prompt.messages, tools=tuple(tools)),
        token_ids=sent.token_ids,
        cache_salt="",
        max_tokens=1,
        arrived_at=1000.0 + number,
        began_at=float(number),
        report=counted(sent).report,
    )


def test_a_server_sees_that_its_tools_come_in_another_order_each_time() -> None:
    rng = random.Random(3)
    tools = [Tool(name=name, description=words(random.Random(name), 40)) for name in ("mail", "search", "weather")]
    shuffled = [with_tools(number, rng.sample(tools, len(tools))) for number in range(40)]
    diagnosis = diagnose(traffic_of(shuffled, stats(), None, page_size=PAGE_SIZE))
    assert "the tools" in the_loss(diagnosis, "json_order").evidence.text
    same = [with_tools(number, tools) for number in range(40)]
    assert "json_order" not in causes(diagnose(traffic_of(same, stats(), None, page_size=PAGE_SIZE)))


def test_calls_are_a_part_of_the_message_that_they_came_with() -> None:
    call = ToolCall(call_id="call_1", name="weather", arguments='{"city": "Pau"}')
    messages = (ChatMessage("assistant", "", tool_calls=(call,)), ChatMessage("assistant", "Well.", tool_calls=(call,)))
    observation = Observation(token_ids=counted(chat("x")).token_ids, prompt=ChatPrompt(messages=messages))
    assert [section.content for section in sections(observation)] == [
        'weather({"city": "Pau"})',
        'Well.\nweather({"city": "Pau"})',
    ]
