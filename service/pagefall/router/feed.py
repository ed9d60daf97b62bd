"""One worker's KV events on their way into the index: are they complete, in order, and of the same life of the server?

connecting --hello--> live                       it went on behind the last event that was taken
    ^       `-hello-> snapshot --snapshot_end--> live
    `------- any fault, or the end of the connection
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, assert_never

import msgspec

from pagefall.kv_events import Beat, Cleared, Entered, Held, Hello, KvEvent, KvLine, Left, SnapshotEnd
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import CacheFacts, PageLayout
from pagefall.router.routing import WorkerId

FeedState = Literal["connecting", "snapshot", "live"]

_NAMESPACE_BYTES: Final = 32
_MAX_NAME: Final = 200


class FeedError(Exception):
    """Something was missed, or the stream is not what it should be: connect anew."""


class OtherModelError(FeedError):
    """The worker serves a model that the router's tokenizer is not for: its pages are of other tokens."""


class Position(msgspec.Struct, frozen=True):
    """The last event that was taken: where a new connection goes on."""

    epoch: str
    number: int


class EventFeed:
    """Pure. Feeds the index, or says why it cannot; it never lets the index believe what may be wrong.

    After a fault the index keeps what it knew: most of it is still true, and the next connection brings the rest.
    """

    def __init__(
        self,
        worker_id: WorkerId,
        index: PrefixIndex,
        *,
        models: Collection[str] | None = None,
    ) -> None:
        """`models`: names of the one that prompts are tokenised for; None: whatever the worker serves."""
        self._worker_id = worker_id
        self._models = models
        self._index = index
        self._position: Position | None = None
        self._snapshot_epoch = ""
        self.state: FeedState = "connecting"
        self.num_events = 0
        self.num_gaps = 0
        """How often something was found missing."""
        self.num_snapshots = 0

    @property
    def position(self) -> Position | None:
        """None where a snapshot is needed."""
        return self._position if self._worker_id in self._index else None

    def connected(self) -> None:
        """A new connection: `Hello` comes first."""
        self._index.abandon_snapshot(self._worker_id)
        self.state = "connecting"

    def take(self, line: KvLine) -> None:
        """Raises `FeedError`, perhaps an `OtherModelError`; what comes after it on this connection is of no use."""
        match line:
            case Hello():
                self._hello(line)
            case Held():
                self._require("snapshot", "part of a snapshot")
                self._index.held(self._worker_id, line.tier, line.names)
            case SnapshotEnd():
                self._require("snapshot", "end of a snapshot")
                self._snapshot_end(line)
            case Entered() | Left() | Cleared():
                self._require("live", "event")
                self._event(line)
            case Beat():
                self._require("live", "beat")
                self._beat(line)
            case _:
                assert_never(line)

    def _hello(self, hello: Hello) -> None:
        self._require("connecting", "hello")
        layout = PageLayout(_namespace(hello.namespace), hello.page_size)
        if self._models is not None and hello.model not in self._models:
            raise OtherModelError(f"it serves {hello.model[:_MAX_NAME]!r}")
        if hello.page_size < 1:
            raise FeedError(f"a page size of {hello.page_size}")
        facts = CacheFacts(layout, hello.store, hello.num_device_pages)
        if hello.has_snapshot:
            self._index.begin_snapshot(self._worker_id, facts)
            self._snapshot_epoch = hello.epoch
            self.state = "snapshot"
            return
        position = self.position
        if position is None or position.epoch != hello.epoch or self._index.facts(self._worker_id) != facts:
            self._position = None
            raise FeedError("the server goes on from where we were not")
        self.state = "live"

    def _snapshot_end(self, end: SnapshotEnd) -> None:
        self._index.end_snapshot(self._worker_id)
        self._position = Position(self._snapshot_epoch, end.number)
        self.num_snapshots += 1
        self.state = "live"

    def _event(self, event: KvEvent) -> None:
        position = self._current()
        if event.number != position.number + 1:
            self._gap(f"event {event.number} came after event {position.number}")
        self._index.apply(self._worker_id, event)
        self._position = Position(position.epoch, event.number)
        self.num_events += 1

    def _beat(self, beat: Beat) -> None:
        position = self._current()
        if beat.number != position.number:
            self._gap(f"the server is at event {beat.number}, event {position.number} came last")

    def _gap(self, reason: str) -> None:
        self.num_gaps += 1
        raise FeedError(reason)

    def _current(self) -> Position:
        position = self.position
        if position is None:
            raise FeedError("the worker was dropped from the index")
        return position

    def _require(self, state: FeedState, what: str) -> None:
        if self.state != state:
            raise FeedError(f"an unexpected {what}, while {self.state}")
        if state == "snapshot" and not self._index.has_snapshot_begun(self._worker_id):
            raise FeedError("the worker was dropped from the index")


def _namespace(text: str) -> bytes:
    try:
        namespace = bytes.fromhex(text)
    except ValueError:
        namespace = b""
    if len(namespace) != _NAMESPACE_BYTES:
        raise FeedError(f"a namespace that is not {_NAMESPACE_BYTES} bytes in hex")
    return namespace
