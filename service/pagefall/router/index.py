"""Which worker has which page, in which tier: what the workers' KV events say, and what was sent to them since.

Each worker has a *slot*, three bits of a mask: on its device, in its host memory, expected on its device. One table
maps a page's name to the mask of all workers, so that a lookup costs the same for one worker and for many.

A snapshot fills a slot of its own, which takes the place of the former one at its end. A slot that is given up is
skipped from then on; its bits are swept out of the table little by little, by whatever is called next.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Final, assert_never

from pagefall.kv_events import Cleared, Entered, KvEvent, Left, names_as_ints
from pagefall.messages import Tier
from pagefall.router.layout import CacheFacts, PageLayout, TierPages
from pagefall.router.routing import WorkerId
from pagefall.router.store_names import StoreNames

_NUM_SHARDS: Final = 256
"""The table is cut, so that one sweep of a part of it is short."""

_DEVICE: Final = 0b001
_HOST: Final = 0b010
_EXPECTED: Final = 0b100
_SLOT_BITS: Final = 3
_MAX_SHARED_MASKS: Final = 65_536
_MAX_RETIRED_SLOTS: Final = 64
_MAX_UNUSED_STORES: Final = 16


class _Contents:
    """One worker's slot. `expected` has when each expectation ends."""

    def __init__(self, slot: int, facts: CacheFacts, store: StoreNames) -> None:
        self.shift = slot * _SLOT_BITS
        self.slot = slot
        self.facts = facts
        self.store = store
        self.expected: dict[int, float] = {}
        self.num_pages: dict[Tier, int] = {"device": 0, "host": 0}


class PrefixIndex:
    """Pure: knows no clock and no loop. Names are those of `kv_events`; a prompt's come from `page_names`."""

    def __init__(self, *, max_stored_pages: int = 2_000_000, max_expected_pages: int = 1_000_000) -> None:
        """`max_stored_pages` of each store are remembered at most; `max_expected_pages` of all workers together."""
        self._max_stored_pages = max_stored_pages
        self._max_expected_pages = max_expected_pages
        self._shards: list[dict[int, int]] = [{} for _ in range(_NUM_SHARDS)]
        self._workers: dict[WorkerId, _Contents] = {}
        self._snapshots: dict[WorkerId, _Contents] = {}
        self._stores: dict[tuple[str, bytes], StoreNames] = {}
        self._masks: dict[int, int] = {}
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._retired: list[int] = []
        self._sweeping: list[int] = []
        self._next_shard = 0
        self._ends: list[tuple[float, int, WorkerId, Sequence[int]]] = []
        self._order = count()
        self._num_expected = 0

    # What is known of the workers

    def __contains__(self, worker_id: WorkerId) -> bool:
        """Whether a whole snapshot of the worker was seen, and it was not dropped since."""
        return worker_id in self._workers

    def facts(self, worker_id: WorkerId) -> CacheFacts | None:
        """None for a worker of which nothing is known."""
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.facts

    def layout(self, worker_id: WorkerId) -> PageLayout | None:
        """None for a worker of which nothing is known."""
        worker = self._workers.get(worker_id)
        return None if worker is None else worker.facts.layout

    def num_pages(self, worker_id: WorkerId, tier: Tier) -> int:
        """Pages of the worker in `tier`; for the store, pages that all who share it are known to have."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return 0
        return len(worker.store) if tier == "storage" else worker.num_pages[tier]

    def num_expected(self, worker_id: WorkerId) -> int:
        worker = self._workers.get(worker_id)
        return 0 if worker is None else len(worker.expected)

    @property
    def num_names(self) -> int:
        """Entries of the table: pages that any worker has, is expected to have, or had until a moment ago."""
        return sum(map(len, self._shards))

    @property
    def num_stored_names(self) -> int:
        """Pages that any store is known to have, whether a worker has that store now or not."""
        return sum(map(len, self._stores.values()))

    # What the workers say

    def begin_snapshot(self, worker_id: WorkerId, facts: CacheFacts) -> None:
        """What follows with `held` is the worker's contents. A snapshot that was begun before and not ended is
        forgotten.
        """
        self.abandon_snapshot(worker_id)
        store = StoreNames(0) if facts.store_id is None else self._store(facts.store_id, facts.layout)
        self._snapshots[worker_id] = _Contents(self._take_slot(), facts, store)

    def held(self, worker_id: WorkerId, tier: Tier, names: bytes) -> None:
        """A part of the snapshot. Raises `KeyError` if none was begun."""
        self._add(self._snapshots[worker_id], tier, names_as_ints(names))
        self._sweep()

    def end_snapshot(self, worker_id: WorkerId) -> None:
        """From now on lookups see the snapshot, and nothing of before. Raises `KeyError` if none was begun."""
        snapshot = self._snapshots.pop(worker_id)
        self._retire(self._workers.pop(worker_id, None))
        self._workers[worker_id] = snapshot

    def has_snapshot_begun(self, worker_id: WorkerId) -> bool:
        return worker_id in self._snapshots

    def abandon_snapshot(self, worker_id: WorkerId) -> None:
        """What came of it is forgotten; what was known before stays."""
        self._retire(self._snapshots.pop(worker_id, None))

    def apply(self, worker_id: WorkerId, event: KvEvent) -> None:
        """The caller has checked the number. Raises `KeyError` for a worker that is not in the index."""
        worker = self._workers[worker_id]
        match event:
            case Entered():
                self._add(worker, event.tier, names_as_ints(event.names))
            case Left():
                self._remove(worker, event.tier, names_as_ints(event.names))
            case Cleared():
                self._clear(worker_id, worker, event.tier)
            case _:
                assert_never(event)
        self._sweep()

    def drop(self, worker_id: WorkerId) -> None:
        """Nothing is known of the worker any more. What it stored stays known for a while."""
        self.abandon_snapshot(worker_id)
        self._retire(self._workers.pop(worker_id, None))
        self._forget_unused_stores()

    # What was sent to the workers

    def expect(self, worker_id: WorkerId, names: Sequence[int], until: float) -> None:
        """Pages the worker will have on its device when it has computed what was sent to it. They count as if they
        were there until an event speaks of them, or `until` has passed: see `expire`.
        """
        worker = self._workers.get(worker_id)
        if worker is None or self._num_expected >= self._max_expected_pages:
            return
        device, expected = _DEVICE << worker.shift, _EXPECTED << worker.shift
        new = []
        for name in names:
            shard = self._shards[name % _NUM_SHARDS]
            mask = shard.get(name, 0)
            if not mask & device:
                shard[name] = self._shared(mask | expected)
                worker.expected[name] = until
                new.append(name)
        if new:
            self._num_expected += len(new)
            heapq.heappush(self._ends, (until, next(self._order), worker_id, new))

    def expire(self, now: float) -> None:
        """Ends the expectations whose time has passed."""
        while self._ends and self._ends[0][0] <= now:
            _, _, worker_id, names = heapq.heappop(self._ends)
            self._num_expected -= len(names)
            worker = self._workers.get(worker_id)
            if worker is not None and worker.expected:
                over = [name for name in names if worker.expected.get(name, now + 1) <= now]
                self._unset(_EXPECTED << worker.shift, over)
                _forget(worker.expected, over)

    # Lookup

    def lookup(self, layout: PageLayout, pages: Iterable[Sequence[int]]) -> dict[WorkerId, TierPages]:
        """How many leading pages of a prompt each worker of this layout has. `pages` are their names in parts, and no
        further part is taken when no worker has the last one.

        Costs one look into the table for each page, and a little for each worker that stops having them.
        """
        self._sweep()
        workers = {id_: worker for id_, worker in self._workers.items() if worker.facts.layout == layout}
        walk = _Walk(workers)
        for names in pages:
            shards = self._shards
            walk.take(names, [shards[name % _NUM_SHARDS].get(name, 0) for name in names])
            if not walk.alive:
                break
        return walk.result()

    # The table

    def _add(self, worker: _Contents, tier: Tier, names: Sequence[int]) -> None:
        if tier == "storage":
            worker.store.add(names)
            return
        bit = (_DEVICE if tier == "device" else _HOST) << worker.shift
        keep = ~(_EXPECTED << worker.shift) if tier == "device" else -1
        num_new = 0
        for name in names:
            shard = self._shards[name % _NUM_SHARDS]
            mask = shard.get(name, 0)
            num_new += not mask & bit
            shard[name] = self._shared((mask | bit) & keep)
        worker.num_pages[tier] += num_new
        if tier == "device":
            _forget(worker.expected, names)

    def _remove(self, worker: _Contents, tier: Tier, names: Sequence[int]) -> None:
        if tier == "storage":
            worker.store.discard(names)
            return
        bits = (_DEVICE | _EXPECTED if tier == "device" else _HOST) << worker.shift
        held = (_DEVICE if tier == "device" else _HOST) << worker.shift
        worker.num_pages[tier] -= self._unset(bits, names, counted=held)
        if tier == "device":
            _forget(worker.expected, names)

    def _unset(self, bits: int, names: Iterable[int], counted: int = 0) -> int:
        """Clears `bits` of `names`. Returns how many of them had one of `counted`."""
        num_counted = 0
        for name in names:
            shard = self._shards[name % _NUM_SHARDS]
            mask = shard.get(name, 0)
            num_counted += bool(mask & counted)
            if left := mask & ~bits:
                shard[name] = self._shared(left)
            elif mask:
                del shard[name]
        return num_counted

    def _clear(self, worker_id: WorkerId, worker: _Contents, tier: Tier) -> None:
        """The slot is given up, and what the worker has in the other tier moves to a new one."""
        if tier == "storage":
            worker.store.clear()
            return
        fresh = _Contents(self._take_slot(), worker.facts, worker.store)
        other: Tier = "host" if tier == "device" else "device"
        if worker.num_pages[other] or (tier == "host" and worker.expected):
            kept = (_HOST if tier == "device" else _DEVICE | _EXPECTED) << worker.shift
            for shard in self._shards:
                for name, mask in shard.items():
                    if bits := mask & kept:
                        shard[name] = self._shared(mask | bits >> worker.shift << fresh.shift)
            fresh.num_pages[other] = worker.num_pages[other]
            if tier == "host":
                fresh.expected = worker.expected
        self._workers[worker_id] = fresh
        self._retire(worker)

    def _shared(self, mask: int) -> int:
        """An equal number that others hold too: few masks are the masks of many pages."""
        if len(self._masks) > _MAX_SHARED_MASKS:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    def _store(self, store_id: str, layout: PageLayout) -> StoreNames:
        key = (store_id, layout.namespace)
        if key not in self._stores:
            self._forget_unused_stores()
            self._stores[key] = StoreNames(self._max_stored_pages)
        return self._stores[key]

    def _forget_unused_stores(self) -> None:
        """Of those that no worker has now, the last ones stay, together as large as one may be: they may come back."""
        used = {id(worker.store) for worker in (*self._workers.values(), *self._snapshots.values())}
        unused = [key for key, store in self._stores.items() if id(store) not in used]
        num_left = 0
        for number, key in enumerate(reversed(unused)):
            num_left += len(self._stores[key])
            if number >= _MAX_UNUSED_STORES or num_left > self._max_stored_pages:
                del self._stores[key]

    # Slots

    def _take_slot(self) -> int:
        while len(self._retired) + len(self._sweeping) > _MAX_RETIRED_SLOTS:
            self._sweep()
        if self._free_slots:
            return self._free_slots.pop()
        self._num_slots += 1
        return self._num_slots - 1

    def _retire(self, contents: _Contents | None) -> None:
        if contents is not None:
            self._retired.append(contents.slot)

    def _sweep(self) -> None:
        """Clears the bits of the slots that were given up from one part of the table."""
        if not self._sweeping:
            if not self._retired:
                return
            self._sweeping, self._retired, self._next_shard = self._retired, [], 0
        gone = sum(0b111 << slot * _SLOT_BITS for slot in self._sweeping)
        shard = self._shards[self._next_shard]
        if any(mask & gone for mask in shard.values()):
            self._shards[self._next_shard] = {
                name: self._shared(left) for name, mask in shard.items() if (left := mask & ~gone)
            }
        self._next_shard += 1
        if self._next_shard == _NUM_SHARDS:
            self._free_slots += self._sweeping
            self._sweeping = []


class _Walk:
    """Walks along a prompt with the workers that have all of it so far, the alive ones, and counts by intervals.

    A worker's bits change where one tier's pages end and another's begin, so what is done for each worker is done
    there and not at each page.
    """

    def __init__(self, workers: dict[WorkerId, _Contents]) -> None:
        self._workers = workers
        self._by_shift = {worker.shift: (id_, worker) for id_, worker in workers.items()}
        self.alive = sum(_DEVICE << worker.shift for worker in workers.values())
        self._position = 0
        self._before = 0
        self._since: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._ends: dict[WorkerId, int] = {}

    def take(self, names: Sequence[int], masks: Sequence[int]) -> None:
        """The next pages, and each one's mask."""
        start = self._position
        index = 0
        while index < len(names) and self.alive:
            mask = masks[index]
            end = index + 1
            while end < len(names) and masks[end] == mask:
                end += 1
            here = (mask | mask >> 1 | mask >> 2) & self.alive
            if lost := self.alive & ~here:
                self._lose(lost, names[index:end], start + index)
            self._tally(mask, start + index)
            index = end
        self._position = start + len(names)

    def _lose(self, lost: int, names: Sequence[int], position: int) -> None:
        """The workers of `lost` have none of these pages themselves: how far does their store have them?"""
        num_stored: dict[int, int] = {}
        for shift in _bits(lost):
            worker_id, worker = self._by_shift[shift]
            store = worker.store
            if id(store) not in num_stored:
                num_stored[id(store)] = store.num_leading(names)
            if num_stored[id(store)] < len(names):
                self._ends[worker_id] = position + num_stored[id(store)]
                self.alive &= ~(1 << shift)

    def _tally(self, mask: int, position: int) -> None:
        """From `position` on the pages have this mask. A page that is expected counts for the device, and a page of
        two tiers for the nearer.
        """
        device = (mask | mask >> 2) & self.alive
        now = device | (mask >> 1 & self.alive & ~device) << 1
        for bit in _bits(now ^ self._before):
            if now >> bit & 1:
                self._since[bit] = position
            else:
                self._counts[bit] = self._counts.get(bit, 0) + position - self._since.pop(bit)
        self._before = now

    def result(self) -> dict[WorkerId, TierPages]:
        self._tally(0, self._position)
        pages = {}
        for worker_id, worker in self._workers.items():
            num_device = self._counts.get(worker.shift, 0)
            num_host = self._counts.get(worker.shift + 1, 0)
            num_pages = self._ends.get(worker_id, self._position)
            pages[worker_id] = TierPages(num_device, num_host, num_pages - num_device - num_host)
        return pages


def _bits(number: int) -> Iterator[int]:
    """The positions of its ones."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _forget(expected: dict[int, float], names: Iterable[int]) -> None:
    if expected:
        for name in names:
            expected.pop(name, None)
