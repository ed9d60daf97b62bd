from __future__ import annotations

from tests.scheduling_driver import Driver, prompt

from pagefall.messages import RequestId, RequestOutput, SamplingParams, TokenLogprob
from pagefall.scheduling.apply import apply_result
from pagefall.scheduling.plan import plan_step


def outputs_of_a_step(driver: Driver) -> tuple[RequestOutput, ...]:
    plan = plan_step(driver.state, step=0, now=0.0)
    return apply_result(driver.state, plan, driver.model.step(plan), now=0.0).outputs


def test_an_answer_ends_at_max_tokens() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 5), max_tokens=3)
    driver.run()
    assert driver.answers["a"] == driver.model.answer_alone(prompt(0, 5), 3)
    assert driver.finish_reasons["a"] == "length"


def test_an_answer_ends_with_its_stop_token() -> None:
    driver = Driver()
    wanted = driver.model.answer_alone(prompt(0, 5), 20)
    stop = frozenset([wanted[6]])
    driver.submit("a", prompt(0, 5), max_tokens=20, stop=stop)
    driver.run()
    assert driver.answers["a"] == wanted[: wanted.index(wanted[6]) + 1]
    assert driver.finish_reasons["a"] == "stop"


def test_a_stop_token_at_the_very_end_is_still_a_stop() -> None:
    driver = Driver()
    (token,) = driver.model.answer_alone(prompt(0, 5), 1)
    driver.submit("a", prompt(0, 5), max_tokens=1, stop=frozenset([token]))
    driver.run()
    assert driver.finish_reasons["a"] == "stop"


def test_the_next_turn_of_a_conversation_finds_the_answer_in_the_cache() -> None:
    driver = Driver()
    first = prompt(0, 10)
    driver.submit("a", first, max_tokens=11)
    driver.run()
    driver.submit("b", [*first, *driver.answers["a"], *prompt(1, 5)])
    driver.run()
    assert driver.cached_tokens["b"] == 20


def test_chunks_in_the_middle_of_a_prompt_say_nothing() -> None:
    driver = Driver(num_pages=256)
    driver.submit("a", prompt(0, 600), max_tokens=1)
    assert outputs_of_a_step(driver) == ()
    (output,) = outputs_of_a_step(driver)
    assert output.finish_reason == "length"


def test_log_probabilities_come_only_where_they_were_asked_for() -> None:
    driver = Driver()
    driver.submit("a", [1], sampling=SamplingParams(num_top_logprobs=0))
    driver.submit("b", [2])
    token = driver.model.answer_alone([1], 1)[0]
    asked, silent = outputs_of_a_step(driver)
    assert asked.logprobs == (TokenLogprob(token, -1.0),)
    assert silent.logprobs == ()


def test_every_output_says_what_was_cached_and_where() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 9), max_tokens=1)
    driver.run()
    driver.submit("b", prompt(0, 9))
    (output,) = outputs_of_a_step(driver)
    assert output.request_id == RequestId("b")
    assert (output.cached_tokens, output.cached_tokens_by_tier) == (8, {"device": 8, "host": 0, "storage": 0})


def test_the_counters_add_up() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 9), max_tokens=2)
    driver.run()
    driver.submit("b", prompt(0, 9), max_tokens=3)
    driver.run()
    stats = driver.state.stats()
    assert (stats.num_steps, stats.num_prompt_tokens, stats.num_cached_tokens) == (5, 18, 8)
    assert (stats.num_generated_tokens, stats.forward_seconds, stats.sample_seconds) == (5, 1.25, 0.625)
