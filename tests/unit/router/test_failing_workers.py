"""Workers that fail: what goes elsewhere, what does not, and what the client hears."""

from __future__ import annotations

import json

import anyio
import httpx
import pytest
from tests.fake_worker import (
    Answering,
    Behaviour,
    FakeWorker,
    Seen,
    event,
    fake_workers,
    reset,
    reset_after_headers,
    silent,
    status,
)
from tests.router_rig import RunningRouter, chat_body, router_config, running_router, until

from pagefall.router.config import ForwardConfig, WorkersConfig

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "failure",
    [reset, reset_after_headers, status(502), status(503), status(504)],
    ids=["reset", "reset after the headers", "502", "503", "504"],
)
async def test_what_fails_before_its_first_byte_goes_to_another_worker(failure: Behaviour) -> None:
    async with fake_workers("a", "b") as [bad, good], running_router(router_config(bad, good)) as running:
        bad.behaviour = failure
        answer = await running.chat(stream=True)
        decision = running.router.decisions.get(answer.headers["x-request-id"])
    assert answer.status_code == 200
    assert answer.headers["x-pagefall-worker"] == "w1"
    assert len(bad.posts) == len(good.posts) == 1
    assert bad.posts[0].body == good.posts[0].body
    assert decision is not None
    assert [attempt.worker for attempt in decision.attempts] == ["w0", "w1"]


@pytest.mark.parametrize("code", [400, 404, 422, 429, 500, 501])
async def test_what_says_something_about_the_request_is_the_answer(code: int) -> None:
    async with fake_workers("a", "b") as [one, other], running_router(router_config(one, other)) as running:
        one.behaviour = status(code, "because")
        answer = await running.chat()
    assert answer.status_code == code
    assert answer.json()["error"]["message"] == "because"
    assert other.posts == []


async def test_a_full_worker_sends_a_request_elsewhere_once_and_is_no_failing_one() -> None:
    async with fake_workers("a", "b", "c") as workers, running_router(router_config(*workers)) as running:
        for worker in workers:
            worker.behaviour = status(503, "full", retry_after="7")
        for _ in range(10):
            answer = await running.chat()
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
        await running.all_ended()
        assert running.breakers() == ["closed"] * 3
    assert sum(len(worker.posts) for worker in workers) == 20


async def test_a_silent_worker_is_left_after_its_time_and_the_request_goes_elsewhere() -> None:
    forward = ForwardConfig(first_byte_timeout=0.1)
    async with (
        fake_workers("a", "b") as [bad, good],
        running_router(router_config(bad, good, forward=forward)) as running,
    ):
        bad.behaviour = silent
        answer = await running.chat()
        await until(lambda: bad.num_hang_ups == 1)
    assert answer.headers["x-pagefall-worker"] == "w1"
    assert len(good.posts) == 1


async def test_a_worker_that_stays_silent_alone_is_a_timeout() -> None:
    forward = ForwardConfig(first_byte_timeout=0.1, max_attempts=1)
    async with fake_workers("a") as [bad], running_router(router_config(bad, forward=forward)) as running:
        bad.behaviour = silent
        answer = await running.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "worker_timeout")


async def test_a_stream_that_breaks_ends_with_an_error_event_and_is_sent_nowhere_else() -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(event("a", 0))
        await answering.chunk(event("a", 1)[:20])  # half an event
        answering.close()

    async with fake_workers("a", "b") as [bad, good], running_router(router_config(bad, good)) as running:
        bad.behaviour = behave
        answer = await running.chat(stream=True)
        await running.all_ended()
        assert running.router.registry.workers[0].num_ended["broken"] == 1
    first, error, end = answer.text.split("\n\n")
    assert first.encode() + b"\n\n" == event("a", 0)
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "answer_broken"
    assert end == ""
    assert good.posts == []


async def test_a_stream_that_falls_silent_ends_with_an_error_event() -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(event("a", 0))
        await answering.until_left()

    forward = ForwardConfig(idle_timeout=0.1)
    async with fake_workers("a") as [bad], running_router(router_config(bad, forward=forward)) as running:
        bad.behaviour = behave
        answer = await running.chat(stream=True)
        await until(lambda: bad.num_hang_ups == 1)
    assert "answer_broken" in answer.text


async def test_a_stream_that_had_said_its_last_word_is_whole_whatever_its_connection_does() -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.begin()
        await answering.chunk(b"data: [DONE]\n\n")
        answering.close()

    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviour = behave
        answer = await running.chat(stream=True)
    assert answer.text == "data: [DONE]\n\n"


@pytest.mark.parametrize(("path", "last"), [("/v1/messages", "message_stop"), ("/v1/responses", "response.completed")])
async def test_streams_with_named_events_end_in_the_shape_of_their_endpoint(path: str, last: str) -> None:
    first = b'event: first\ndata: {"type": "first", "sequence_number": 0}\n\n'
    end = f'event: {last}\ndata: {{"type": "{last}", "response": {{"text": "{"x" * 500}"}}}}\n\n'.encode()

    def behave(*chunks: bytes) -> Behaviour:
        async def answer(seen: Seen, answering: Answering) -> None:
            await answering.begin()
            for chunk in chunks:
                await answering.chunk(chunk)
            answering.close()

        return answer

    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviours.extend([behave(first, end), behave(first)])
        whole, broken = [await running.client.post(path, content=chat_body(stream=True)) for _ in range(2)]
    assert whole.content == first + end
    assert broken.content.startswith(first + b"event: error\ndata: ")
    error = json.loads(broken.content.removeprefix(first + b"event: error\ndata: "))
    assert error["type"] == "error"
    if path == "/v1/messages":
        assert error["error"]["type"] == "api_error"
    else:
        assert (error["code"], error["sequence_number"]) == ("answer_broken", 1)


async def test_an_answer_that_breaks_and_is_no_stream_is_cut() -> None:
    async def behave(seen: Seen, answering: Answering) -> None:
        await answering.begin("application/json")
        await answering.chunk(b'{"half": ')
        answering.close()

    async with fake_workers("a", "b") as [bad, good], running_router(router_config(bad, good)) as running:
        bad.behaviour = behave
        with pytest.raises(httpx.RemoteProtocolError):
            await running.chat()
    assert good.posts == []


async def test_failures_in_a_row_open_the_breaker_and_others_get_the_requests() -> None:
    workers_config = WorkersConfig(health_interval=0.05, breaker_failures=3, breaker_open_seconds=60)
    async with (
        fake_workers("a", "b") as [bad, good],
        running_router(router_config(bad, good, workers_config=workers_config)) as running,
    ):
        bad.behaviour = status(500)
        for _ in range(20):
            await running.chat()
        await running.all_ended()
        assert running.breakers() == ["open", "closed"]
        assert running.router.registry.workers[0].state == "healthy"
    assert len(bad.posts) == 3


async def test_where_all_fail_they_are_asked_all_the_same_and_their_answers_passed_on() -> None:
    workers_config = WorkersConfig(health_interval=0.05, breaker_failures=1, breaker_open_seconds=60)
    async with (
        fake_workers("a") as [bad],
        running_router(router_config(bad, workers_config=workers_config)) as running,
    ):
        bad.behaviour = status(500, "always")
        answers = [await running.chat() for _ in range(4)]
    assert {answer.json()["error"]["message"] for answer in answers} == {"always"}
    assert len(bad.posts) == 4


async def test_a_connection_that_was_closed_meanwhile_costs_the_only_worker_no_request() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        worker.behaviours.append(reset)
        answer = await running.chat()
    assert answer.status_code == 200
    assert len(worker.posts) == 2


async def test_a_frozen_worker_loses_its_unanswered_requests_to_others_once_probes_fail() -> None:
    workers_config = WorkersConfig(health_interval=0.05, health_timeout=0.3)
    async with (
        fake_workers("a", "b") as [frozen, good],
        running_router(router_config(frozen, good, workers_config=workers_config)) as running,
    ):
        frozen.freeze()
        answers = await _chat_at_once(running, 6, stream=True)
        assert {answer.headers["x-pagefall-worker"] for answer in answers} == {"w1"}
        await running.wait_for("w0", "unhealthy")
        num_connections = len(frozen.seen)
        await _chat_at_once(running, 6)
        assert len(frozen.seen) == num_connections
        frozen.thaw()
        await running.wait_for("w0", "healthy")
        await until(lambda: running.router.registry.num_outstanding == 0)


async def test_a_worker_that_says_that_it_is_not_ready_keeps_what_it_has_and_gets_no_more() -> None:
    release = anyio.Event()

    async def slow(seen: Seen, answering: Answering) -> None:
        await release.wait()
        await answering.whole(200, b'{"late": true}')

    async with fake_workers("a", "b") as [leaving, other], running_router(router_config(leaving, other)) as running:
        leaving.behaviour = slow
        async with anyio.create_task_group() as group:
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await running.chat())

            group.start_soon(ask)
            await until(lambda: bool(leaving.posts))
            leaving.behaviours.clear()
            leaving.paths["/v1/models"] = {}
            _not_ready(leaving)
            await running.wait_for("w0", "unhealthy")
            assert {(await running.chat()).headers["x-pagefall-worker"] for _ in range(3)} == {"w1"}
            release.set()
    assert [answer.json() for answer in answers] == [{"late": True}]
    assert len(leaving.posts) == 1


async def test_requests_wait_for_a_worker_that_comes_back() -> None:
    async with fake_workers("a") as [worker], running_router(router_config(worker)) as running:
        await worker.kill()
        await running.wait_for("w0", "unhealthy")
        assert (await running.client.get("/health")).status_code == 503
        async with anyio.create_task_group() as group:
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await running.chat())

            group.start_soon(ask)
            await until(lambda: running.router.gate.num_waiting == 1)
            await worker.start()
    assert [answer.status_code for answer in answers] == [200]


async def test_what_waits_for_a_worker_too_long_is_refused() -> None:
    forward = ForwardConfig(queue_timeout=0.1, max_queued_requests=1)
    async with fake_workers("a") as [worker], running_router(router_config(worker, forward=forward)) as running:
        await worker.kill()
        await running.wait_for("w0", "unhealthy")
        answer = await running.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_worker")


async def test_under_load_nothing_is_lost_before_its_first_byte_and_nothing_is_said_twice() -> None:
    """One is killed, one freezes, both come back while clients stream; each answer is whole, or ends with an error."""
    workers_config = WorkersConfig(health_interval=0.05, health_timeout=0.3)
    forward = ForwardConfig(max_attempts=10, idle_timeout=5)
    async with fake_workers("a", "b", "c") as workers:
        config = router_config(*workers, workers_config=workers_config, forward=forward)
        async with running_router(config) as running:
            is_over = False
            answers: list[httpx.Response] = []

            async def client() -> None:
                while not is_over:
                    answers.append(await running.chat(stream=True))

            async with anyio.create_task_group() as group:
                for worker in workers:
                    worker.num_tokens = 8
                for _ in range(6):
                    group.start_soon(client)
                for worker, fault in zip(workers, ("kill", "freeze"), strict=False):
                    await _after(answers, 12)
                    await _fail(worker, fault)
                    name = _name_of(running, worker)
                    await running.wait_for(name, "unhealthy")
                    num_seen = len(worker.seen)
                    await _after(answers, 12)
                    assert len(worker.seen) == num_seen  # nothing goes to it
                    await _come_back(worker, fault)
                    await running.wait_for(name, "healthy")
                    await _after(answers, 12)
                is_over = True
            await until(lambda: running.router.registry.num_outstanding == 0)
    assert {answer.status_code for answer in answers} == {200}
    for answer in answers:
        _check_said_once(answer.text)


async def _chat_at_once(running: RunningRouter, count: int, *, stream: bool = False) -> list[httpx.Response]:
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await running.chat(stream=stream))

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(ask)
    return answers


async def _after(answers: list[httpx.Response], count: int) -> None:
    wanted = len(answers) + count
    await until(lambda: len(answers) >= wanted)


async def _fail(worker: FakeWorker, fault: str) -> None:
    if fault == "kill":
        await worker.kill()
    else:
        worker.freeze()


async def _come_back(worker: FakeWorker, fault: str) -> None:
    if fault == "kill":
        await worker.start()
    else:
        worker.thaw()


def _name_of(running: RunningRouter, worker: FakeWorker) -> str:
    known = running.router.registry.get(worker.url)
    assert known is not None
    return known.name


def _check_said_once(text: str) -> None:
    """The events of one worker, each once and in order; then the end, or an error."""
    *events, last, _ = text.split("\n\n")
    parsed = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({event["worker"] for event in parsed}) <= 1
    assert [event["index"] for event in parsed] == list(range(len(parsed)))
    assert last == "data: [DONE]" or "answer_broken" in last
    if last == "data: [DONE]":
        assert len(parsed) == 8


def _not_ready(worker: FakeWorker) -> None:
    del worker.paths["/health"]
