"""`GET /cache/events`: what enters and leaves each tier, as a stream of JSON lines; see `pagefall.kv_events`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pagefall.actors.kv_log import KvEventLog
from pagefall.api.engine import Engine
from pagefall.errors import RequestError
from pagefall.kv_events import NAME_BYTES, Beat, Held, Hello, SnapshotEnd, encode_line
from pagefall.messages import KeysSnapshot, Tier

BEAT_SECONDS: Final = 2.0

_PART_BYTES: Final = 64 * 1024 * NAME_BYTES

_MAX_READERS: Final = 64


class KvEvents:
    """The endpoint."""

    def __init__(self, engine: Engine, *, beat_seconds: float = BEAT_SECONDS) -> None:
        self._engine = engine
        self._beat_seconds = beat_seconds
        self._num_readers = 0

    async def stream(self, request: Request) -> Response:
        """`?epoch=E&after=N` goes on behind event `N` where that is still possible.

        503 while too many readers follow, or too many want a snapshot at once.
        """
        log = self._engine.kv_log
        if self._num_readers >= _MAX_READERS:
            raise RequestError(
                f"{_MAX_READERS} readers follow the events already.",
                status=503,
                type="service_unavailable_error",
                code="too_many_readers",
                retry_after_seconds=5,
            )
        after = _after(request)
        origin = self._origin()
        can_resume = request.query_params.get("epoch") == origin.epoch and log.since(after) is not None
        self._num_readers += 1
        try:
            # Before the answer begins: then it can still be a refusal.
            start: KeysSnapshot | int = after if can_resume else await self._engine.snapshot_keys()
        except BaseException:
            self._forget_reader()
            raise
        return _CountedResponse(self._lines(log, start, origin), self._forget_reader)

    def _forget_reader(self) -> None:
        self._num_readers -= 1

    async def _lines(self, log: KvEventLog, start: KeysSnapshot | int, origin: _Origin) -> AsyncIterator[bytes]:
        """Ends when the server does, when the reader was too slow for what is remembered, and with another store."""
        if isinstance(start, int):
            yield encode_line(self._hello(log, log.number, origin, has_snapshot=False))
            after = start
        else:
            yield encode_line(self._hello(log, start.number, origin, has_snapshot=True))
            for part in _parts(start):
                yield part
            after = start.number
        while not log.is_closed and self._origin() == origin and (lines := log.since(after)) is not None:
            after = log.number
            yield b"".join(lines) or encode_line(Beat(number=after))
            await log.wait(after, seconds=self._beat_seconds)

    def _origin(self) -> _Origin:
        """A store that cannot say which it is, is this server's own."""
        log, controller = self._engine.kv_log, self._engine.controller_stats()
        if controller is None or controller.breaker is None:
            return _Origin(log.epoch, None)
        store = controller.storage_identity or log.epoch
        return _Origin(f"{log.epoch}.{store}", store)

    def _hello(self, log: KvEventLog, number: int, origin: _Origin, *, has_snapshot: bool) -> Hello:
        return Hello(
            epoch=origin.epoch,
            number=number,
            model=self._engine.model.id,
            namespace=log.namespace.hex(),
            page_size=log.page_size,
            has_snapshot=has_snapshot,
            store=origin.store,
            num_device_pages=self._engine.stats().device_pages.total,
        )


class _Origin(NamedTuple):
    """Whose numbers the events have, and which store the server has: another epoch with each."""

    epoch: str
    store: str | None


class _CountedResponse(StreamingResponse):
    """Calls `forget` when it is over, even where the client left before a line was asked for."""

    def __init__(self, lines: AsyncIterator[bytes], forget: Callable[[], None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._forget = forget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._forget()


def _after(request: Request) -> int:
    """Raises `RequestError` for what is no number, and for parameters that mean nothing here."""
    for name in request.query_params:
        if name not in ("epoch", "after"):
            raise RequestError(f"Unknown parameter: '{name}'. There are 'epoch' and 'after'.", param=name)
    text = request.query_params.get("after", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"Invalid value for 'after': {text[:40]!r} is not a number of an event.", param="after")
    return int(text)


def _parts(snapshot: KeysSnapshot) -> list[bytes]:
    tiers: dict[Tier, bytes] = {"device": snapshot.device, "host": snapshot.host, "storage": snapshot.storage}
    lines = [
        encode_line(Held(tier=tier, names=names[start : start + _PART_BYTES]))
        for tier, names in tiers.items()
        for start in range(0, len(names), _PART_BYTES)
    ]
    return [*lines, encode_line(SnapshotEnd(number=snapshot.number))]
