from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import TypeAlias

import anyio
import anyio.lowlevel
import httpx
import pytest
from tests.kv_event_server import KvEventServer

from pagefall.kv_events import KvLine, encode_line
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import PageLayout, TierPages
from pagefall.router.routing import WorkerId
from pagefall.router.subscriber import Subscriber, SubscriberConfig

LAYOUT = PageLayout(b"n" * 32, 16)
WORKER = WorkerId("http://worker:1")

Answer: TypeAlias = int | Exception
"""What a connection gets in place of a stream."""


class Stream(httpx.AsyncByteStream):
    """Bytes as the test sends them; an exception that it sends is raised, and None is the end."""

    def __init__(self) -> None:
        self._chunks: deque[bytes | Exception | None] = deque()
        self._news = anyio.Event()

    def say(self, chunk: bytes | Exception | None) -> None:
        self._chunks.append(chunk)
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                if chunk is None:
                    return
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
            self._news = anyio.Event()
            await self._news.wait()


class ScriptedWorker(httpx.AsyncBaseTransport):
    """Each connection takes the next of `answers`; when there are none left it is a stream of the server's lines."""

    def __init__(self) -> None:
        self.server = KvEventServer(LAYOUT)
        self.answers: list[Answer] = []
        self.requests: list[httpx.Request] = []
        self.prefix = b""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        # Others run between two tries, whatever the wait between them.
        await anyio.lowlevel.checkpoint()
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer)
        self._stream = Stream()
        asked = request.url.params
        lines = self.server.open(asked.get("epoch"), int(asked["after"]) if "after" in asked else None)
        self.say(self.prefix)
        self.tell(*lines)
        return httpx.Response(200, stream=self._stream)

    def tell(self, *lines: KvLine) -> None:
        self.say(b"".join(map(encode_line, lines)))

    def say(self, chunk: bytes | Exception) -> None:
        self._stream.say(chunk)

    def end(self) -> None:
        self._stream.say(None)


class Rig:
    def __init__(self, *, models: Collection[str] | None = None, **config: float) -> None:
        self.now = 0.0
        self._is_started = False
        self.index = PrefixIndex()
        self.worker = ScriptedWorker()
        self.client = httpx.AsyncClient(transport=self.worker)
        waits = {"first_retry_seconds": 0.0, "most_retry_seconds": 0.0, "unsupported_retry_seconds": 0.0} | config
        self.subscriber = Subscriber(
            WORKER,
            self.index,
            self.client,
            api_key="secret",
            models=models,
            config=SubscriberConfig(**waits),
            clock=lambda: self.now,
        )

    async def __aenter__(self) -> Rig:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        await self.client.aclose()

    def start(self) -> None:
        self._is_started = True
        self._tasks.start_soon(self.subscriber.run)

    def pages(self, names: Iterable[int]) -> TierPages | None:
        return self.index.lookup(LAYOUT, [list(names)]).get(WORKER)

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await anyio.lowlevel.checkpoint()

    async def live(self, num_connections: int = 1) -> None:
        """Starts the reader if it was not, so that what the server did before is in the snapshot."""
        if not self._is_started:
            self.start()

        def is_live() -> bool:
            state = self.subscriber.state
            return state.status == "live" and state.num_connections == num_connections

        await self.until(is_live)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig:
        yield rig


async def test_a_snapshot_and_then_events_reach_the_index(rig: Rig) -> None:
    rig.worker.server.enter("device", range(10_000))
    await rig.live()
    rig.worker.tell(rig.worker.server.enter("host", [10_000]))
    await rig.until(lambda: rig.subscriber.state.num_events == 1)
    assert rig.pages(range(10_001)) == TierPages(10_000, 1, 0)
    state = rig.subscriber.state
    assert (state.has_events, state.last_number, state.num_snapshots, state.connected_since) == (True, 2, 1, 0.0)


async def test_the_key_is_sent_and_the_first_connection_asks_for_everything(rig: Rig) -> None:
    await rig.live()
    [request] = rig.worker.requests
    assert str(request.url) == "http://worker:1/cache/events"
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.extensions["timeout"]["read"] == 6.0


async def test_lines_may_be_cut_anywhere(rig: Rig) -> None:
    await rig.live()
    for byte in encode_line(rig.worker.server.enter("device", [1, 2])) + b"\n":
        rig.worker.say(bytes([byte]))
    await rig.until(lambda: rig.subscriber.state.num_events == 1)
    assert rig.pages([1, 2]) == TierPages(2, 0, 0)


async def test_after_a_gap_it_connects_anew_behind_the_last_event_it_has(rig: Rig) -> None:
    await rig.live()
    rig.worker.tell(rig.worker.server.enter("device", [1]))
    rig.worker.server.enter("device", [2])
    rig.worker.tell(rig.worker.server.enter("device", [3]))
    await rig.live(num_connections=2)
    assert rig.worker.requests[1].url.params["after"] == "1"
    assert rig.worker.requests[1].url.params["epoch"] == "life 1"
    await rig.until(lambda: rig.subscriber.state.num_events == 3)
    assert rig.pages([1, 2, 3]) == TierPages(3, 0, 0)
    assert (rig.subscriber.state.num_gaps, rig.subscriber.state.num_snapshots) == (1, 1)


@pytest.mark.parametrize(
    "fault",
    [
        b"no json\n",
        b'{"type":"entered","number":1}\n',
        b"\xff\xfe\n",
        httpx.ReadTimeout("silence"),
        httpx.RemoteProtocolError("cut off"),
        OSError("anything"),
    ],
)
async def test_whatever_the_worker_does_it_comes_back(rig: Rig, fault: bytes | Exception) -> None:
    await rig.live()
    rig.worker.server.enter("device", [1])
    rig.worker.say(fault)
    await rig.live(num_connections=2)
    await rig.until(lambda: rig.pages([1]) == TierPages(1, 0, 0))


async def test_a_stream_that_ends_is_opened_again(rig: Rig) -> None:
    await rig.live()
    rig.worker.end()
    await rig.live(num_connections=2)


async def test_a_restarted_worker_is_known_by_what_it_has_now(rig: Rig) -> None:
    rig.worker.server.enter("device", [1, 2])
    await rig.live()
    rig.worker.server.restart()
    rig.worker.server.enter("device", [1])
    rig.worker.answers = [httpx.ConnectError("refused"), 503, 500]
    rig.worker.say(httpx.ReadError("reset"))
    await rig.live(num_connections=2)
    assert len(rig.worker.requests) == 5
    assert rig.pages([1, 2]) == TierPages(1, 0, 0)


async def test_while_a_worker_is_away_for_a_moment_what_is_known_of_it_stays(rig: Rig) -> None:
    rig.worker.server.enter("device", [1])
    await rig.live()
    rig.worker.answers = [httpx.ConnectError("refused")] * 10_000
    rig.worker.say(httpx.ReadError("reset"))
    await rig.until(lambda: rig.subscriber.state.status == "waiting")
    assert rig.pages([1]) == TierPages(1, 0, 0)
    rig.now = 60.0
    await rig.until(lambda: WORKER not in rig.index)
    assert not rig.subscriber.state.has_events


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_events_is_routed_to_by_what_it_was_sent(status: int) -> None:
    rig = Rig(unsupported_retry_seconds=1000.0)
    rig.worker.answers = [status]
    async with rig:
        rig.start()
        await rig.until(lambda: rig.subscriber.state.status == "unsupported")
        assert not rig.subscriber.state.has_events
        assert rig.subscriber.state.last_error is None
        # Another server may be at this address one day.
        rig.subscriber.wake()
        await rig.live()
        assert rig.subscriber.state.has_events


async def test_a_key_that_is_refused_is_said_so() -> None:
    rig = Rig(first_retry_seconds=1000.0, most_retry_seconds=1000.0)
    rig.worker.answers = [401]
    async with rig:
        rig.start()
        await rig.until(lambda: rig.subscriber.state.status == "waiting")
        assert "--worker-api-key" in (rig.subscriber.state.last_error or "")


async def test_a_worker_with_another_model_is_warned_of_once_and_routed_to_by_what_it_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(models={"ours"}, unsupported_retry_seconds=1000.0)
    async with rig:
        rig.start()
        await rig.until(lambda: rig.subscriber.state.status == "other_model")
        assert not rig.subscriber.state.has_events
        rig.subscriber.wake()
        await rig.until(lambda: rig.subscriber.state.num_connections == 2)
        await rig.until(lambda: rig.subscriber.state.status == "other_model")
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "it serves 'model'" in warning
    assert "--model-path" in warning


async def test_only_a_stream_that_ends_is_no_cause_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pagefall.router")
    rig = Rig()
    async with rig:
        await rig.live()
        rig.worker.answers = [httpx.ConnectError("refused")]
        rig.worker.end()
        await rig.live(num_connections=2)
    told = [(record.levelname, record.getMessage().rpartition(": ")[2]) for record in caplog.records]
    assert told == [("INFO", "the worker ended the stream"), ("WARNING", "refused")]


async def test_a_line_without_end_is_no_line(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagefall.router.subscriber._MAX_LINE_BYTES", 1000)
    await rig.live()
    rig.worker.say(b"x" * 1001)
    await rig.live(num_connections=2)


async def test_a_worker_that_the_policy_dropped_is_read_anew(rig: Rig) -> None:
    rig.worker.server.enter("device", [1])
    await rig.live()
    rig.index.drop(WORKER)
    rig.worker.tell(rig.worker.server.beat())
    await rig.live(num_connections=2)
    assert "after" not in rig.worker.requests[1].url.params
    assert rig.pages([1]) == TierPages(1, 0, 0)


async def test_a_cancelled_reader_leaves_nothing_in_the_index() -> None:
    rig = Rig()
    async with rig:
        await rig.live()
    assert WORKER not in rig.index


async def test_a_closed_client_does_not_end_the_reader(rig: Rig) -> None:
    await rig.live()
    await rig.client.aclose()
    rig.worker.end()
    await rig.until(lambda: "closed" in (rig.subscriber.state.last_error or ""))
    assert rig.subscriber.state.status == "waiting"
