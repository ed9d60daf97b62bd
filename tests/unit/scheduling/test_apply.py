from __future__ import annotations

import msgspec
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


def test_a_request_that_the_runner_gives_up_ends_with_abort_and_the_others_go_on() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 9), max_tokens=5)
    driver.submit("b", prompt(1, 9), max_tokens=5)
    for failed, reasons in ((False, [None, None]), (True, ["abort", None])):
        plan = plan_step(driver.state, step=0, now=0.0)
        result = driver.model.step(plan)
        if failed:
            result = msgspec.structs.replace(result, sampled=(None, result.sampled[1]), failed=frozenset(["a"]))
        outputs = apply_result(driver.state, plan, result, now=0.0).outputs
        assert [output.finish_reason for output in outputs] == reasons
    assert outputs[0].token_ids == ()
    driver.state.cache.check()
    assert plan_step(driver.state, step=0, now=0.0).ended == ("a",)


def test_a_request_may_be_given_up_at_its_first_token_and_keeps_its_account() -> None:
    driver = Driver()
    driver.submit("a", prompt(0, 9))
    plan = plan_step(driver.state, step=0, now=0.0)
    result = msgspec.structs.replace(driver.model.step(plan), sampled=(None,), failed=frozenset(["a"]))
    [output] = apply_result(driver.state, plan, result, now=0.0).outputs
    assert output.finish_reason == "abort"
    assert output.prefix is not None
    assert not driver.state.running
    driver.state.cache.check()
