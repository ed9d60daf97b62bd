from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import anyio
import pytest

from pagefall.bench.load.driver import ClosedLoop, Driver, Limits, Loop, OpenLoop
from pagefall.bench.load.samples import Answer, Fault, RequestFailedError
from pagefall.bench.load.turns import Piece, Preparation, Session, Turn
from pagefall.errors import PagefallError

from .virtual_time import run_virtually


class ScriptedServer:
    """First token after 1 s, the second and last 1 s later; prompts named in `fails` are refused at once."""

    def __init__(self, *, fails: Callable[[str], bool] = lambda _: False) -> None:
        self.log: list[tuple[float, str]] = []
        self.num_at_once = 0
        self.most_at_once = 0
        self.prepared: list[Preparation] = []
        self.num_template_tokens = 0
        self._fails = fails

    def body(self, turn: Turn, answers: Mapping[int, str]) -> bytes:
        said = "".join(f"+{answers[number]}" for number in sorted(answers))
        return (turn.pieces[-1].key + said).encode()

    async def stream(self, body: bytes, *, on_token: Callable[[], object]) -> Answer:
        sent_at = anyio.current_time()
        self.log.append((sent_at, body.decode()))
        if self._fails(body.decode()):
            raise RequestFailedError(Fault(kind="status", status=503, message="busy"))
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await anyio.sleep(1)
        on_token()
        await anyio.sleep(1)
        self.num_at_once -= 1
        return Answer(
            sent_at=sent_at,
            arrivals=(sent_at + 1, sent_at + 2),
            ended_at=sent_at + 2,
            text=f"re {body.decode()}",
            num_prompt_tokens=20,
        )

    async def prepare(self, preparation: Preparation) -> None:
        if preparation == "restart":
            raise PagefallError("did not come back")
        self.prepared.append(preparation)


def turn(key: str, **changes: Any) -> Turn:
    fields: dict[str, Any] = {"part": "p", "pieces": (Piece(key=key, num_tokens=10),), "output_tokens": 2}
    return Turn(**(fields | changes))


def singles(count: int) -> Iterator[Session]:
    return iter([Session(turns=(turn(f"r{number}"),)) for number in range(count)])


def conversation(name: str, num_turns: int, **changes: Any) -> Session:
    return Session(turns=tuple(turn(f"{name}{number}", **(changes if number else {})) for number in range(num_turns)))


def drive(
    server: ScriptedServer,
    sessions: Iterable[Session],
    loop: Loop,
    limits: Limits = Limits(),  # noqa: B008
) -> Driver:
    async def run() -> Driver:
        driver = Driver(server, iter(sessions), loop, limits)
        await driver.run()
        assert driver.num_running == driver.num_streaming == 0
        return driver

    return run_virtually(run)


def test_a_closed_loop_sends_the_next_request_when_one_ends() -> None:
    server = ScriptedServer()
    driver = drive(server, singles(5), ClosedLoop(concurrency=2))
    assert server.log == [(0, "r0"), (0, "r1"), (2, "r2"), (2, "r3"), (4, "r4")]
    assert server.most_at_once == 2
    assert [(s.sent_at, s.ttft_seconds, s.gaps_seconds, s.ended_at) for s in driver.samples][-1] == (4, 1, (1,), 6)
    assert driver.seconds == 6


def test_an_open_loop_sends_when_requests_are_due_whatever_the_server_does() -> None:
    server = ScriptedServer()
    driver = drive(server, singles(4), OpenLoop(arrivals=iter([0.5, 0.75, 3.0, 3.25, 9.0])))
    assert [at for at, _ in server.log] == [0.5, 0.75, 3.0, 3.25]
    assert all(sample.delay_seconds == 0 for sample in driver.samples)


def test_what_a_limit_holds_back_is_in_the_samples() -> None:
    server = ScriptedServer()
    driver = drive(server, singles(3), OpenLoop(arrivals=iter([0.0, 0.5, 1.0]), max_concurrency=1))
    assert server.most_at_once == 1
    assert [(sample.due_at, sample.sent_at, sample.delay_seconds) for sample in driver.samples] == [
        (0.0, 0.0, 0.0),
        (0.5, 2.0, 1.5),
        (1.0, 4.0, 3.0),
    ]


@pytest.mark.parametrize("loop", [ClosedLoop(concurrency=2), OpenLoop(arrivals=itertools.count(0.0, 1.0))])
def test_nothing_is_sent_when_time_is_up_and_what_was_sent_is_answered(loop: Loop) -> None:
    server = ScriptedServer()
    driver = drive(server, singles(100), loop, Limits(seconds=5))
    assert all(at < 5 for at, _ in server.log)
    assert len(driver.samples) == len(server.log) in (5, 6)
    assert driver.seconds > 5


def test_time_is_up_for_one_who_waits_for_a_place_too() -> None:
    server = ScriptedServer()
    drive(server, singles(9), OpenLoop(arrivals=itertools.repeat(0.0), max_concurrency=1), Limits(seconds=3))
    assert [at for at, _ in server.log] == [0, 2]


def test_no_more_are_sent_than_asked_for() -> None:
    for loop in (ClosedLoop(concurrency=3), OpenLoop(arrivals=itertools.repeat(0.0))):
        server = ScriptedServer()
        assert len(drive(server, singles(100), loop, Limits(num_requests=7)).samples) == 7


def test_all_users_speak_before_any_speaks_again() -> None:
    server = ScriptedServer()
    drive(server, [conversation(name, 2) for name in "abc"], ClosedLoop(concurrency=2))
    assert [body for _, body in server.log] == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_no_more_sessions_go_on_than_are_to_be_active() -> None:
    server = ScriptedServer()
    sessions = [conversation(name, 2) for name in "abc"]
    drive(server, sessions, ClosedLoop(concurrency=4), Limits(active_sessions=2))
    assert server.log == [(0, "a0"), (0, "b0"), (2, "a1"), (2, "b1"), (4, "c0"), (6, "c1")]


def test_a_user_thinks_before_the_next_turn() -> None:
    server = ScriptedServer()
    drive(server, [conversation("a", 3, think_seconds=10)], ClosedLoop(concurrency=2))
    assert [at for at, _ in server.log] == [0, 12, 24]


def test_an_arrival_waits_for_a_user_who_has_no_answer_yet() -> None:
    server = ScriptedServer()
    driver = drive(server, [conversation("a", 2)], OpenLoop(arrivals=iter([0.0, 0.5])))
    assert [at for at, _ in server.log] == [0, 2]
    assert driver.samples[1].delay_seconds == 1.5


def test_real_answers_are_in_the_next_prompt_and_known_to_the_ceiling() -> None:
    server = ScriptedServer()
    first = turn("q0", answer_key="a0")
    answer = Piece(key="a0", num_tokens=2, role="assistant", answer_to=0)
    second = turn("q1", pieces=(*first.pieces, answer, Piece(key="q1", num_tokens=8)))
    driver = drive(server, [Session(turns=(first, second))], ClosedLoop(concurrency=1))
    assert server.log[1][1] == "q1+re q0"
    # 12 of the 20 tokens aimed at, and the server counts 20.
    assert [sample.num_seen_tokens for sample in driver.samples] == [0, 12]


def test_seen_tokens_are_in_the_servers_measure_and_a_last_one_is_always_computed() -> None:
    server = ScriptedServer()
    server.num_template_tokens = 4
    driver = drive(server, [*singles(1), *singles(1)], ClosedLoop(concurrency=1))
    assert [sample.num_prompt_tokens for sample in driver.samples] == [20, 20]
    assert [sample.num_seen_tokens for sample in driver.samples] == [4, 19]


def test_a_failure_is_a_sample_and_the_session_goes_on() -> None:
    server = ScriptedServer(fails=lambda body: body == "a0")
    driver = drive(server, [conversation("a", 2)], ClosedLoop(concurrency=1))
    assert [sample.fault and sample.fault.name for sample in driver.samples] == ["status 503", None]
    assert driver.samples[0].ttft_seconds is None
    assert driver.note is None


def test_a_server_that_refuses_everything_is_given_up() -> None:
    server = ScriptedServer(fails=lambda _: True)
    driver = drive(server, singles(1_000), ClosedLoop(concurrency=4))
    assert driver.note == "given up after 32 failures in a row, the last: busy"
    assert 32 <= len(driver.samples) <= 36


def test_the_server_is_prepared_where_a_turn_wants_it() -> None:
    server = ScriptedServer()
    sessions = [Session(turns=(turn("a"), turn("b", preparation="settle")))]
    drive(server, sessions, ClosedLoop(concurrency=1))
    assert server.prepared == ["settle"]


def test_a_server_that_cannot_be_prepared_ends_the_run_and_what_was_measured_stays() -> None:
    async def run() -> None:
        sessions = [Session(turns=(turn("a"), turn("b", preparation="restart")))]
        driver = Driver(ScriptedServer(), iter(sessions), ClosedLoop(concurrency=2), Limits())
        with pytest.raises(PagefallError, match="did not come back"):
            await driver.run()
        assert len(driver.samples) == 1

    run_virtually(run)


def test_a_run_that_is_cut_off_has_left_what_it_measured() -> None:
    async def run() -> None:
        driver = Driver(ScriptedServer(), singles(100), ClosedLoop(concurrency=1), Limits())
        with anyio.move_on_after(5):
            await driver.run()
        assert len(driver.samples) == 2
        assert driver.num_running == 1
        assert driver.seconds == 4

    run_virtually(run)
