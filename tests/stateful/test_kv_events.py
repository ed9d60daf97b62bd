"""The index against the true contents of the workers: events in any number, lines lost, connections cut, restarts."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.kv_event_server import TIERS, KvEventServer

from pagefall.kv_events import KvLine
from pagefall.messages import Tier
from pagefall.router.feed import EventFeed, FeedError
from pagefall.router.index import PrefixIndex
from pagefall.router.layout import PageLayout, TierPages
from pagefall.router.routing import WorkerId

LAYOUTS = (PageLayout(b"a" * 32, 16), PageLayout(b"b" * 32, 16))
NAMES = list(range(1000, 1012))
"""A prompt's pages. Workers hold any of them, also some that no tree would hold without those before."""

ALONE = [WorkerId("alone 1"), WorkerId("alone 2")]
SHARING = [WorkerId("sharing 1"), WorkerId("sharing 2"), WorkerId("other namespace")]

names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=12, unique=True)
tiers = st.sampled_from(("device", "device", "host", "storage"))
changes = st.tuples(st.sampled_from(("enter", "enter", "leave", "clear")), tiers, names)
workers = st.sampled_from((*ALONE, *SHARING))


class Link:
    """A worker, its reader, and the lines between them."""

    def __init__(self, worker_id: WorkerId, index: PrefixIndex) -> None:
        is_other = worker_id == "other namespace"
        store = None if worker_id in ALONE else "shared"
        self.server = KvEventServer(LAYOUTS[is_other], num_remembered=3, store=store)
        self.feed = EventFeed(worker_id, index)
        self.lines: deque[KvLine] = deque()
        self.is_connected = False

    def connect(self) -> None:
        self.feed.connected()
        position = self.feed.position
        asked = () if position is None else (position.epoch, position.number)
        self.lines = deque(self.server.open(*asked))
        self.is_connected = True

    def cut(self) -> None:
        self.lines.clear()
        self.is_connected = False

    def deliver(self, num_lines: int) -> None:
        while self.is_connected and self.lines and num_lines:
            num_lines -= 1
            try:
                self.feed.take(self.lines.popleft())
            except FeedError:
                self.cut()

    def settle(self) -> None:
        """Until a beat says that nothing is missing."""
        for _ in range(4):
            if not self.is_connected:
                self.connect()
            self.lines.append(self.server.beat())
            self.deliver(len(self.lines))
            if self.is_connected:
                return
        raise AssertionError("the reader does not come to rest")


class KvEventMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(max_stored_pages=1000)
        self.links = {id_: Link(id_, self.index) for id_ in (*ALONE, *SHARING)}
        self.ever_stored = {layout: set[int]() for layout in LAYOUTS}
        self.ever_deleted = {layout: set[int]() for layout in LAYOUTS}
        self.now = 0.0
        for link in self.links.values():
            link.connect()

    @rule(worker=workers, happening=st.lists(changes, min_size=1, max_size=10))
    def change(self, worker: WorkerId, happening: list[tuple[str, Tier, list[int]]]) -> None:
        link = self.links[worker]
        layout = link.server.layout
        for what, tier, some in happening:
            if tier == "storage":
                stored, deleted = self.ever_stored[layout], self.ever_deleted[layout]
                if what == "enter":
                    stored.update(some)
                else:
                    deleted.update(some if what == "leave" else NAMES)
            match what:
                case "enter":
                    event = link.server.enter(tier, some)
                case "leave":
                    event = link.server.leave(tier, some)
                case _:
                    event = link.server.clear(tier)
            if link.is_connected:
                link.lines.append(event)

    @rule(worker=workers, num_lines=st.integers(1, 12))
    def deliver(self, worker: WorkerId, num_lines: int) -> None:
        self.links[worker].deliver(num_lines)

    @rule(worker=workers, which=st.integers(0, 20))
    def lose_a_line(self, worker: WorkerId, which: int) -> None:
        lines = self.links[worker].lines
        # A stream that loses a part of its snapshot and not the rest is no stream; events are numbered, parts are not.
        if lines and self.links[worker].feed.state == "live":
            del lines[which % len(lines)]

    @rule(worker=workers)
    def connect(self, worker: WorkerId) -> None:
        self.links[worker].connect()

    @rule(worker=workers)
    def cut(self, worker: WorkerId) -> None:
        self.links[worker].cut()

    @rule(worker=workers)
    def restart(self, worker: WorkerId) -> None:
        self.links[worker].cut()
        self.links[worker].server.restart()

    @rule(worker=workers)
    def remove(self, worker: WorkerId) -> None:
        self.index.drop(worker)

    @rule(worker=workers, some=names, seconds=st.floats(0, 3))
    def send(self, worker: WorkerId, some: list[int], seconds: float) -> None:
        self.index.expect(worker, some, self.now + seconds)

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.index.expire(self.now)

    @rule(start=st.integers(0, len(NAMES) - 1), cut_at=st.integers(0, len(NAMES)))
    def compare(self, start: int, cut_at: int) -> None:
        self.now += 10
        self.index.expire(self.now)
        for link in self.links.values():
            link.settle()
        prompt = NAMES[start:]
        parts = [prompt[:cut_at], prompt[cut_at:]]
        for layout in LAYOUTS:
            found = self.index.lookup(layout, parts)
            assert set(found) == {id_ for id_, link in self.links.items() if link.server.layout == layout}
            for worker_id, pages in found.items():
                self.check(worker_id, prompt, pages)

    def check(self, worker_id: WorkerId, prompt: list[int], pages: TierPages) -> None:
        server = self.links[worker_id].server
        device, host = server.contents["device"], server.contents["host"]
        assert self.index.num_pages(worker_id, "device") == len(device)
        assert self.index.num_pages(worker_id, "host") == len(host)
        assert self.index.num_expected(worker_id) == 0
        if worker_id in ALONE:
            assert pages == truth(prompt, device, host, set())
            return
        # What is stored is a hint: at least what a worker of today has stored and nobody deleted, at most what anybody
        # ever stored.
        layout = server.layout
        mine = [link.server for id_, link in self.links.items() if id_ in SHARING and link.server.layout == layout]
        known = set().union(*(other.contents["storage"] for other in mine)) - self.ever_deleted[layout]
        least, most = truth(prompt, device, host, known), truth(prompt, device, host, self.ever_stored[layout])
        assert least.num_pages <= pages.num_pages <= most.num_pages
        assert least.num_device <= pages.num_device <= most.num_device
        assert least.num_host <= pages.num_host <= most.num_host

    @invariant()
    def only_pages_that_somebody_had_are_in_the_table(self) -> None:
        assert self.index.num_names <= len(NAMES)


def truth(prompt: list[int], device: set[int], host: set[int], stored: set[int]) -> TierPages:
    counts = {"device": 0, "host": 0, "storage": 0}
    for name in prompt:
        tier = "device" if name in device else "host" if name in host else "storage" if name in stored else None
        if tier is None:
            break
        counts[tier] += 1
    return TierPages(counts["device"], counts["host"], counts["storage"])


TestKvEvents = KvEventMachine.TestCase
TestKvEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_index_agrees_with_the_workers_after_ten_thousand_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    machine = KvEventMachine()
    whats = ("enter", "enter", "leave", "clear")
    for step in range(10_000):
        worker = rng.choice((*ALONE, *SHARING))
        some = rng.sample(NAMES, rng.randint(1, 6))
        match rng.choices(range(8), (40, 40, 3, 6, 2, 2, 1, 6))[0]:
            case 0:
                tier = rng.choice(TIERS)
                machine.change(worker, [(rng.choice(whats), tier, some)])
            case 1:
                machine.deliver(worker, rng.randint(1, 4))
            case 2:
                machine.lose_a_line(worker, rng.randint(0, 20))
            case 3:
                machine.connect(worker)
            case 4:
                machine.cut(worker)
            case 5:
                machine.restart(worker)
            case 6:
                machine.remove(worker)
            case _:
                machine.send(worker, some, rng.random())
        if step % 60 == 59:
            machine.compare(rng.choice((0, 0, rng.randrange(len(NAMES)))), rng.randint(0, len(NAMES)))
    assert all(link.feed.num_gaps > 5 for link in machine.links.values())
    assert all(link.feed.num_events > 100 for link in machine.links.values())
