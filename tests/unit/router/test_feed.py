from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from tests.kv_event_server import KvEventServer, packed

from pagefall.kv_events import Beat, Entered, Held, Hello, KvLine, SnapshotEnd
from pagefall.router.feed import EventFeed, FeedError, OtherModelError, Position
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import PageLayout, TierPages
from pagefall.router.routing import WorkerId

LAYOUT = PageLayout(b"n" * 32, 16)
WORKER = WorkerId("http://a")


class Rig:
    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.server = KvEventServer(LAYOUT)
        self.feed = EventFeed(WORKER, self.index)

    def connect(self) -> None:
        self.feed.connected()
        position = self.feed.position
        self.take(self.server.open(*((position.epoch, position.number) if position else ())))

    def take(self, lines: Iterable[KvLine]) -> None:
        for line in lines:
            self.feed.take(line)

    def pages(self, *names: int) -> TierPages | None:
        return self.index.lookup(LAYOUT, [names]).get(WORKER)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_newcomer_gets_a_snapshot_and_then_events(rig: Rig) -> None:
    rig.server.enter("device", range(10))
    rig.connect()
    rig.feed.take(rig.server.enter("host", [10]))
    assert rig.feed.state == "live"
    assert rig.pages(*range(11)) == TierPages(10, 1, 0)
    assert rig.feed.position == Position("life 1", 2)
    assert (rig.feed.num_snapshots, rig.feed.num_events) == (1, 1)


def test_a_new_connection_goes_on_where_the_last_one_ended(rig: Rig) -> None:
    rig.connect()
    rig.server.enter("device", [1])
    rig.server.leave("device", [1])
    rig.server.enter("device", [2])
    rig.connect()
    assert (rig.feed.num_snapshots, rig.feed.num_events) == (1, 3)
    assert (rig.pages(1), rig.pages(2)) == (TierPages(), TierPages(1, 0, 0))


def test_events_that_are_forgotten_come_as_a_snapshot(rig: Rig) -> None:
    rig.connect()
    for name in range(20):
        rig.server.enter("device", [name])
    rig.connect()
    assert rig.feed.num_snapshots == 2
    assert rig.pages(*range(20)) == TierPages(20, 0, 0)


def test_a_missing_event_is_found_by_the_next_one_and_changes_nothing(rig: Rig) -> None:
    rig.connect()
    rig.server.enter("device", [1])
    with pytest.raises(FeedError, match="event 2 came after event 0"):
        rig.feed.take(rig.server.enter("device", [2]))
    assert rig.pages(2) == TierPages()
    assert rig.feed.num_gaps == 1
    rig.connect()
    assert rig.pages(1, 2) == TierPages(2, 0, 0)
    assert rig.feed.num_snapshots == 1


def test_a_missing_event_is_found_by_the_next_beat(rig: Rig) -> None:
    rig.connect()
    rig.feed.take(rig.server.beat())
    rig.server.enter("device", [1])
    with pytest.raises(FeedError, match="the server is at event 1, event 0 came last"):
        rig.feed.take(rig.server.beat())


def test_an_event_that_comes_twice_is_no_event(rig: Rig) -> None:
    rig.connect()
    event = rig.server.enter("device", [1])
    rig.feed.take(event)
    with pytest.raises(FeedError):
        rig.feed.take(event)


def test_a_server_that_was_restarted_is_known_by_its_snapshot_only(rig: Rig) -> None:
    rig.server.enter("device", [1, 2])
    rig.connect()
    rig.server.restart()
    rig.server.enter("device", [1])
    rig.connect()
    assert rig.pages(1, 2) == TierPages(1, 0, 0)
    assert rig.feed.position == Position("life 2", 1)


def test_a_worker_that_the_policy_dropped_starts_from_a_snapshot(rig: Rig) -> None:
    rig.server.enter("device", [1])
    rig.connect()
    rig.index.drop(WORKER)
    with pytest.raises(FeedError, match="dropped"):
        rig.feed.take(rig.server.enter("device", [2]))
    assert rig.feed.position is None
    rig.connect()
    assert rig.feed.num_snapshots == 2
    assert rig.pages(1, 2) == TierPages(2, 0, 0)


def test_a_worker_that_is_dropped_in_its_snapshot_starts_anew(rig: Rig) -> None:
    rig.server.enter("device", [1])
    hello, *rest = rig.server.open()
    rig.feed.connected()
    rig.feed.take(hello)
    rig.index.drop(WORKER)
    for line in rest:
        with pytest.raises(FeedError, match="dropped"):
            rig.feed.take(line)
    assert rig.feed.position is None


def test_a_snapshot_that_was_cut_off_is_taken_anew_and_what_was_known_before_stays(rig: Rig) -> None:
    rig.server.enter("device", [1])
    rig.connect()
    for name in range(2, 20):
        rig.server.enter("device", [name])
    rig.feed.connected()
    for line in list(rig.server.open("life 1", 1))[:3]:
        rig.feed.take(line)
    assert rig.pages(1, 2) == TierPages(1, 0, 0)
    rig.connect()
    assert rig.pages(*range(1, 20)) == TierPages(19, 0, 0)


def hello(**changes: object) -> Hello:
    line = next(iter(KvEventServer(LAYOUT).open()))
    assert isinstance(line, Hello)
    return msgspec.structs.replace(line, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": "another life", "has_snapshot": False},
        {"namespace": "6d" * 32, "has_snapshot": False},
        {"page_size": 32, "has_snapshot": False},
        {"page_size": 0},
        {"namespace": "6d" * 31},
        {"namespace": "no hex"},
    ],
)
def test_a_hello_that_cannot_be_is_refused_and_changes_nothing(rig: Rig, changes: dict[str, object]) -> None:
    rig.server.enter("device", [1])
    rig.connect()
    rig.feed.connected()
    with pytest.raises(FeedError):
        rig.feed.take(hello(**changes))
    assert rig.pages(1) == TierPages(1, 0, 0)


def test_events_of_another_model_than_the_tokenizers_are_not_taken() -> None:
    feed = EventFeed(WORKER, PrefixIndex(), models={"ours"})
    feed.connected()
    with pytest.raises(OtherModelError, match="'model'"):
        feed.take(hello())
    feed.connected()
    feed.take(hello(model="ours"))
    assert feed.state == "snapshot"


def test_after_a_server_that_went_on_from_elsewhere_a_snapshot_is_asked_for(rig: Rig) -> None:
    rig.connect()
    rig.feed.connected()
    with pytest.raises(FeedError):
        rig.feed.take(hello(epoch="another life", has_snapshot=False))
    assert rig.feed.position is None


@pytest.mark.parametrize(
    "line",
    [
        Entered(number=1, tier="device", names=packed([1])),
        Beat(number=0),
        Held(tier="device", names=packed([1])),
        SnapshotEnd(number=0),
    ],
)
def test_nothing_comes_before_the_hello(rig: Rig, line: KvLine) -> None:
    rig.feed.connected()
    with pytest.raises(FeedError, match="unexpected"):
        rig.feed.take(line)


def test_a_second_hello_is_refused(rig: Rig) -> None:
    rig.connect()
    with pytest.raises(FeedError, match="unexpected hello"):
        rig.feed.take(hello())
