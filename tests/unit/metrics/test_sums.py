"""Whatever requests do and whenever they leave: what is scraped adds up."""

from __future__ import annotations

from typing import Final

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.scheduling_driver import Driver
from tests.unit.metrics.samples import metrics_of, samples

from pagefall.config import InsightConfig, SchedulerConfig
from pagefall.insight.traffic import TrafficLog
from pagefall.messages import Accepted, RequestId, RequestOutput
from pagefall.metrics.traffic import TrafficMetrics
from pagefall.text.requests import GenerateRequest, TokenPrompt

SCHEDULER: Final = SchedulerConfig(max_running_requests=3, max_queued_requests=4, chunked_prefill_size=7)

# Few tokens, so that prompts have heads in common; a pool so small that they are preempted.
SUBMITS: Final = st.tuples(st.just("submit"), st.lists(st.integers(0, 1), min_size=1, max_size=40), st.integers(1, 40))
LEAVES: Final = st.tuples(st.sampled_from(["abort", "stop"]), st.integers(0, 100), st.just(0))
STEPS: Final = st.tuples(st.just("step"), st.integers(1, 12), st.just(0))


class MeteredDriver(Driver):
    """As the tokenizer would, it tells the traffic log what happens."""

    def __init__(self) -> None:
        super().__init__(num_pages=28, page_size=4, scheduler=SCHEDULER)
        self.traffic = TrafficMetrics(InsightConfig(metrics_window=1e9), clock=lambda: self.now)
        self.log = TrafficLog(InsightConfig(), observers=self.traffic.observers, clock=lambda: self.now)
        self.accepted: dict[str, int] = {}
        self.num_refused = self.num_settled_tokens = 0

    def ask(self, prompt: list[int], max_tokens: int) -> None:
        name = RequestId(str(len(self.accepted) + self.num_refused))
        request = GenerateRequest(request_id=name, prompt=TokenPrompt(tuple(prompt)))
        self.log.begin(request, np.array(prompt, dtype=np.uint32), max_tokens=max_tokens, began_at=self.now)
        answer = self.submit(name, prompt, max_tokens=max_tokens)
        if isinstance(answer, Accepted):
            self.log.accept(name)
            self.accepted[name] = len(prompt)
        else:
            self.log.reject(name, answer.reason)
            self.num_refused += 1

    def leave(self, number: int, *, stop: bool) -> None:
        if self.accepted:
            name = list(self.accepted)[number % len(self.accepted)]
            if not stop:
                self.log.note_abort(RequestId(name), "client_gone")
            self.cancel(name, stop=stop)

    def scrape(self) -> dict[str, float]:
        return samples(metrics_of(self.state.stats, traffic=self.traffic))

    def _take(self, output: RequestOutput) -> None:
        super()._take(output)
        if output.prefix is not None:
            self.num_settled_tokens += self.accepted[output.request_id]
        self.log.push(output)


def total(scraped: dict[str, float], name: str) -> float:
    """Over all labels."""
    return sum(value for sample, value in scraped.items() if sample.split(" ")[0] == name)


@settings(max_examples=40, deadline=None)
@given(st.lists(SUBMITS | LEAVES | STEPS, max_size=40))
def test_for_any_history_the_sources_add_up_to_the_prompts_and_so_does_the_rest(
    history: list[tuple[str, list[int] | int, int]],
) -> None:
    driver = MeteredDriver()
    for action, subject, number in history:
        match action, subject:
            case "submit", list(prompt):
                driver.ask(prompt, number)
            case "step", int(count):
                for _ in range(count):
                    driver.step()
            case leaving, int(index):
                driver.leave(index, stop=leaving == "stop")
    assert total(driver.scrape(), "pagefall_prompt_tokens_total") == driver.num_settled_tokens
    driver.run()
    scraped = driver.scrape()
    num_tokens = sum(driver.accepted.values())
    assert total(scraped, "pagefall_prompt_tokens_total") == num_tokens
    sources = {source: scraped[f"pagefall_prompt_tokens_total {source}"] for source in ("computed", "unreached")}
    assert total(scraped, "pagefall_missed_tokens_total") == sum(sources.values())
    num_cached = num_tokens - sum(sources.values())
    assert num_cached <= scraped["pagefall_known_tokens_total"] <= num_tokens
    if num_tokens:
        assert scraped["pagefall_cache_hit_rate"] == pytest.approx(num_cached / num_tokens)
        ceiling = scraped["pagefall_known_tokens_total"] / num_tokens
        assert scraped["pagefall_cache_hit_rate_ceiling"] == pytest.approx(ceiling)
    assert total(scraped, "pagefall_requests_total") == len(driver.accepted)
    assert total(scraped, "pagefall_refused_requests_total") == driver.num_refused
    assert scraped["pagefall_queue_seconds_count"] == len(driver.accepted)
    num_answers = sum(bool(tokens) for tokens in driver.answers.values())
    num_answer_tokens = sum(map(len, driver.answers.values()))
    assert total(scraped, "pagefall_time_to_first_token_seconds_count") == num_answers
    assert total(scraped, "pagefall_inter_token_latency_seconds_count") == num_answer_tokens - num_answers
    assert scraped["pagefall_generated_tokens_total"] == num_answer_tokens
