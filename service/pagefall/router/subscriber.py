"""Reads one worker's `GET /cache/events` for as long as the router has the worker.

Whatever the worker does (it is down, frozen, slow, of another make, or sends nonsense) the reader goes on trying, and
the index has what is known: all of it, something of a few seconds ago, or nothing. Then the policy goes by what was
sent to the worker.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from typing import Final, Literal

import anyio
import anyio.lowlevel
import httpx
import msgspec

from pagefall.kv_events import NAME_BYTES, Held, KvLine, decode_line
from pagefall.router.backoff import Backoff
from pagefall.router.feed import EventFeed, FeedError, OtherModelError
from pagefall.router.index import PrefixIndex
from pagefall.router.routing import WorkerId

_log = logging.getLogger("pagefall.router")

_NO_SUCH_PATH: Final = frozenset({404, 405, 501})
_MAX_LINE_BYTES: Final = 64 << 20
_PART_BYTES: Final = 4096 * NAME_BYTES
"""The names that are taken before others have their turn: a few milliseconds."""

SubscriptionStatus = Literal["connecting", "snapshot", "live", "waiting", "unsupported", "other_model"]


class SubscriberConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All in seconds. `silence`: no line for so long is a dead connection, three beats of the server. `stale`: what a
    worker had that long ago says nothing any more. `unsupported_retry`: until a server without events is asked again,
    since it may have been replaced by one that has them.
    """

    connect_seconds: float = 2.0
    silence_seconds: float = 6.0
    stale_seconds: float = 60.0
    first_retry_seconds: float = 0.25
    most_retry_seconds: float = 10.0
    unsupported_retry_seconds: float = 60.0


class SubscriptionState(msgspec.Struct, frozen=True, kw_only=True):
    """For people and metrics. `has_events`: the index has a whole picture of the worker, of now or of a moment ago.
    `connected_since` is on the clock that the subscriber was given, None while there is no connection.
    """

    worker_id: WorkerId
    status: SubscriptionStatus
    has_events: bool
    connected_since: float | None
    last_number: int | None
    num_events: int
    num_gaps: int
    num_snapshots: int
    num_connections: int
    last_error: str | None
    store: str | None
    num_device_tokens: int | None

    @property
    def is_connected(self) -> bool:
        return self.connected_since is not None


class Subscriber:
    """One worker's reader. `run` is one task; the rest is for the same loop."""

    def __init__(
        self,
        worker_id: WorkerId,
        index: PrefixIndex,
        client: httpx.AsyncClient,
        *,
        api_key: str | None = None,
        name: str | None = None,
        models: Collection[str] | None = None,
        config: SubscriberConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`client` is the caller's, who closes it. `name` is what the log calls the worker. `models` as an `EventFeed`
        takes it.
        """
        self._worker_id = worker_id
        self._name = name or worker_id
        self._index = index
        self._client = client
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._config = config or SubscriberConfig()
        self._clock = clock
        self._feed = EventFeed(worker_id, index, models=models)
        self._backoff = Backoff(
            self._config.first_retry_seconds, self._config.most_retry_seconds, rng or random.Random()
        )
        self._status: SubscriptionStatus = "connecting"
        self._is_unsupported = False
        self._connected_since: float | None = None
        self._heard_at = clock()
        self._num_connections = 0
        self._last_error: str | None = None
        self._woken = anyio.Event()

    @property
    def state(self) -> SubscriptionState:
        position, facts = self._feed.position, self._index.facts(self._worker_id)
        num_pages = None if facts is None else facts.num_device_pages
        return SubscriptionState(
            worker_id=self._worker_id,
            status=self._status,
            has_events=self._worker_id in self._index,
            connected_since=self._connected_since,
            last_number=None if position is None else position.number,
            num_events=self._feed.num_events,
            num_gaps=self._feed.num_gaps,
            num_snapshots=self._feed.num_snapshots,
            num_connections=self._num_connections,
            last_error=self._last_error,
            store=None if facts is None else facts.store_id,
            num_device_tokens=None if facts is None or num_pages is None else num_pages * facts.layout.page_size,
        )

    def wake(self) -> None:
        """The worker is there again, as far as somebody knows: a wait before the next try ends now."""
        self._woken.set()

    async def run(self) -> None:
        """Until it is cancelled, and never raises anything else. The worker is then no longer in the index."""
        try:
            while True:
                seconds = await self._connect()
                if self._clock() - self._heard_at >= self._config.stale_seconds:
                    self._index.drop(self._worker_id)
                with anyio.move_on_after(seconds):
                    await self._woken.wait()
                self._woken = anyio.Event()
        finally:
            self._index.drop(self._worker_id)

    async def _connect(self) -> float:
        """One connection, from its beginning to its end. Returns the seconds until the next."""
        self._status = "connecting"
        self._feed.connected()
        try:
            return await self._read()
        except OtherModelError as error:
            return self._other_model(error)
        except FeedError as error:
            self._failed(f"events: {error}")
        except msgspec.MsgspecError as error:
            self._failed(f"no line of events: {error}")
        except httpx.ReadTimeout:
            self._failed(f"silent for {self._config.silence_seconds:g} seconds")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._failed(f"{type(error).__name__}: {error}")
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as error:
            self._failed(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it was, the router serves on, by what it sends
            _log.exception("reading the KV events of %s failed", self._name)
            self._failed(repr(error))
        finally:
            self._connected_since = None
            self._index.abandon_snapshot(self._worker_id)
        return self._backoff.next_seconds()

    async def _read(self) -> float:
        position = self._feed.position
        params = {} if position is None else {"epoch": position.epoch, "after": str(position.number)}
        timeout = httpx.Timeout(self._config.silence_seconds, connect=self._config.connect_seconds)
        url = f"{self._worker_id}/cache/events"
        async with self._client.stream("GET", url, params=params, headers=self._headers, timeout=timeout) as response:
            if response.status_code in _NO_SUCH_PATH:
                return self._unsupported(response.status_code)
            if response.status_code != httpx.codes.OK:
                self._failed(_refusal(response.status_code))
                return self._backoff.next_seconds()
            self._is_unsupported = False
            self._num_connections += 1
            self._connected_since = self._clock()
            async with aclosing(_lines(response)) as lines:
                async for line in lines:
                    for part in _parts(decode_line(line)):
                        self._feed.take(part)
                        await anyio.lowlevel.checkpoint()
                    self._heard()
        self._failed("the worker ended the stream", level=logging.INFO)
        return self._backoff.next_seconds()

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self._status = self._feed.state
        if self._feed.state == "live":
            self._backoff.reset()
            self._last_error = None

    def _failed(self, reason: str, *, level: int = logging.WARNING) -> None:
        if reason != self._last_error:
            _log.log(level, "KV events of %s: %s", self._name, reason)
        self._last_error = reason
        self._status = "waiting"

    def _other_model(self, error: OtherModelError) -> float:
        self._failed(
            f"{error}, and the router has no tokenizer but the embedded model's: it is routed to by what is sent to "
            "it. Name its model with --model-path or --tokenizer-path; if it is the embedded one under another name, "
            "with --served-model-name."
        )
        self._status = "other_model"
        self._index.drop(self._worker_id)
        return self._config.unsupported_retry_seconds

    def _unsupported(self, status: int) -> float:
        if not self._is_unsupported:
            _log.info("%s publishes no KV events (status %d): routing by what is sent to it", self._name, status)
        self._status, self._is_unsupported = "unsupported", True
        self._last_error = None
        self._index.drop(self._worker_id)
        return self._config.unsupported_retry_seconds


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Raises `FeedError` for a line without end."""
    rest: list[bytes] = []
    num_bytes = 0
    async for chunk in response.aiter_bytes():
        *complete, last = chunk.split(b"\n")
        for line in complete:
            whole = b"".join((*rest, line))
            rest, num_bytes = [], 0
            if whole.strip():
                yield whole
        rest.append(last)
        num_bytes += len(last)
        if num_bytes > _MAX_LINE_BYTES:
            raise FeedError(f"a line of more than {_MAX_LINE_BYTES} bytes")


def _parts(line: KvLine) -> Iterator[KvLine]:
    """A snapshot is taken in small parts; an event is one, and as small as a step of the scheduler."""
    if not isinstance(line, Held):
        yield line
        return
    for start in range(0, len(line.names), _PART_BYTES):
        yield Held(tier=line.tier, names=line.names[start : start + _PART_BYTES])


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"status {status}: the worker wants an API key, pass --worker-api-key"
    return f"status {status}"
