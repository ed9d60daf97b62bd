"""The store as the cache controller sees it: pages by their keys, in and out of the host pool's memory.

Nothing that a store does can reach a request but as an outcome of a page: it is verified before it is called a hit.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar, assert_never

import msgspec

from pagefall.messages import ControllerStats, FetchOutcome, PageIds, StorageAnswer
from pagefall.tiers.breaker import CircuitBreaker
from pagefall.tiers.counters import StorageCounters
from pagefall.tiers.guarded_store import GuardedStore, Unanswered, one_each, read_trouble, write_trouble
from pagefall.tiers.host_memory import HostMemory
from pagefall.tiers.manifest import NAMESPACE_DIGITS, manifest_key
from pagefall.tiers.store_facts import StoreFacts
from pagefall_storage import page_format
from pagefall_storage.errors import StorageError
from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    GetOutcome,
    Hit,
    Key,
    Miss,
    PutItem,
    PutOutcome,
    StorageBackend,
    Stored,
)

T = TypeVar("T")

Report = Callable[[tuple[int, ...], tuple[FetchOutcome, ...]], Awaitable[None]]
"""Told of pages of a fetch: their indices, and what became of them."""

_log = logging.getLogger("pagefall.storage")

_BATCH_PAGES: Final = 16
_BATCH_BYTES: Final = 8 * 2**20
"""One operation moves at most so much, but a page at least: first pages come early, a fetch is stopped quickly, and yet
there are few enough operations for what each costs beside its bytes (measured on a file store: 0.2 ms).
"""

_READS_PER_FETCH: Final = 2
_MAX_READS: Final = 4
"""Of all fetches together. More would share the store's bandwidth until each of them takes longer than it may."""

_DELETED_AT_ONCE: Final = 256


class _Page(NamedTuple):
    key: bytes
    name: Key
    value: memoryview


class StorageClient:
    """Belongs to one event loop. `namespace` is the digest (32 bytes) of everything that changes a page's bytes.

    `deadline_seconds` is what one operation of the backend may take. `name` is the backend's. `counters` are those of
    the clients before this one, to be added to; None: there were none.
    """

    def __init__(
        self,
        backend: StorageBackend,
        *,
        namespace: bytes,
        memory: HostMemory,
        deadline_seconds: float,
        breaker: CircuitBreaker,
        clock: Callable[[], float],
        name: str = "",
        counters: StorageCounters | None = None,
    ) -> None:
        self._counters = StorageCounters() if counters is None else counters
        self._store = GuardedStore(
            backend,
            breaker,
            deadline_seconds=deadline_seconds,
            value_bytes=memory.value_bytes,
            clock=clock,
            num_failures=self._counters.num_failures,
        )
        self.facts = StoreFacts(self._store)
        self._name = name
        self._namespace = namespace
        self._prefix = f"{namespace.hex()[:NAMESPACE_DIGITS]}/"
        self._memory = memory
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._batch_pages = max(1, min(_BATCH_PAGES, _BATCH_BYTES // memory.value_bytes))
        self._read_slots = asyncio.Semaphore(_MAX_READS)
        self._checksums = ThreadPoolExecutor(1, thread_name_prefix="page-checksum")
        self._backup_turn = asyncio.Lock()
        self._to_leave: dict[Key, bytes] = {}
        self._is_retired = False
        self._is_refusing = False  # writes, as was logged

    def stats(self) -> ControllerStats:
        """What this client knows of the controller's."""
        usage = self.facts.usage
        return msgspec.structs.replace(
            self.counts(),
            breaker=self._store.breaker.state,
            storage_backend=self._name,
            storage_description=self.description,
            storage_identity=self.facts.identity,
            storage_num_pages=None if usage is None else usage.num_bytes // self._memory.value_bytes,
            storage_used_bytes=None if usage is None else usage.num_bytes,
            storage_limit_bytes=None if usage is None else usage.max_bytes,
        )

    def counts(self) -> ControllerStats:
        """What this client and those before it have counted, without what is true of a store that is attached."""
        return ControllerStats(
            transfers=self._counters.transfers.transfers,
            num_storage_outcomes=dict(self._counters.num_outcomes),
            num_storage_failures=dict(self._counters.num_failures),
        )

    @property
    def description(self) -> str:
        """The backend's: one line, without secrets."""
        return self._store.backend.description

    async def lookup(self, keys: Sequence[bytes]) -> tuple[int, StorageAnswer]:
        """How many leading `keys` the store says it has: a hint, for another may delete them."""
        names = self._names(keys)
        if not names:
            return 0, "answered"

        async def contains() -> int:
            num_present = operator.index(await self._store.backend.contains(names))
            if not 0 <= num_present <= len(names):
                raise ValueError(f"contains: {num_present} of {len(names)} keys")
            return num_present

        present = await self._store.call(contains, kind="lookup", key=names[0])
        return (0, present.answer) if isinstance(present, Unanswered) else (present, "answered")

    async def fetch(
        self, keys: Sequence[bytes], host_page_ids: PageIds, report: Report, stopped: asyncio.Event
    ) -> None:
        """Reads the pages, in this order, and verifies them; begins no more reads once `stopped` is set.

        Each page is reported at most once and not written afterwards; when this returns, none is any more. Values found
        corrupt are deleted first, so that a good one can be written in their place.
        """
        pages = self._pages(keys, host_page_ids)
        batches = self._batches(range(len(pages)))

        async def read_batches() -> None:
            while True:
                async with self._read_slots:
                    batch = None if stopped.is_set() else next(batches, None)
                    if batch is None:
                        return
                    its_pages = [pages[index] for index in batch]
                    read = await self._read(its_pages)
                indices = list(batch)
                if isinstance(read, Unanswered):
                    await read.end()
                    if read.answer == "breaker_open":
                        indices += [index for rest in batches for index in rest]
                    outcomes: list[FetchOutcome] = [read.answer] * len(indices)
                    self._counters.num_outcomes[read.answer] += len(indices)
                else:
                    outcomes = await self._settle(its_pages, read)
                await report(tuple(indices), tuple(outcomes))

        async with asyncio.TaskGroup() as readers:
            for _ in range(_READS_PER_FETCH):
                readers.create_task(read_batches())

    async def backup(self, keys: Sequence[bytes], host_page_ids: PageIds) -> tuple[bool, ...]:
        """Writes the pages that the store does not have; which of them it has afterwards.

        Takes its time: one backup is written at a time, and rests after each batch for as long as that took. Gives up
        after a batch of which nothing was stored. When this returns no page is read any more.
        """
        pages = self._pages(keys, host_page_ids)
        async with self._backup_turn:
            num_present, answer = (0, "breaker_open") if self._is_retired else await self.lookup(keys)
            stored = [index < num_present for index in range(len(pages))]
            for batch in self._batches(range(num_present, len(pages))) if answer == "answered" else ():
                started = self._clock()
                its_stored = await self._write([pages[index] for index in batch])
                stored[batch.start : batch.stop] = its_stored
                if self._is_retired or not any(its_stored):
                    break
                for name, value in list(self._to_leave.items()):
                    await self.leave(name, value)
                await asyncio.sleep(self._clock() - started)
        return tuple(stored)

    def retire(self) -> None:
        """Begins no more writes: another store has taken the place of this one. What was asked of it is still read."""
        self._is_retired = True

    def leave_later(self, name: Key, value: bytes) -> None:
        """`leave`, as soon as the store takes pages."""
        self._to_leave[name] = value

    async def leave(self, name: Key, value: bytes) -> bool:
        """Has the store keep a value that is no page, in place of any other; whether it does now. Else it is tried
        again when the store takes pages.
        """

        async def put() -> list[PutOutcome]:
            present = bytearray(len(value))
            outcomes = await self._store.backend.get([name], [memoryview(present)])
            if isinstance(outcomes[0], Hit) and present == value:
                return [Stored()]
            await self._store.backend.delete([name])
            return await self._store.backend.put([PutItem(name, memoryview(value))])

        written = await self._store.call(put, kind="write", key=name, judge=write_trouble)
        is_kept = not isinstance(written, Unanswered) and written == [Stored()]
        if is_kept:
            self._to_leave.pop(name, None)
        else:
            self._to_leave[name] = value
        return is_kept

    async def clear(self) -> int:
        """Deletes every page of the namespace, whatever the breaker says, and returns how many there were.

        Raises `StorageError` when the store cannot do it, or does nothing for as long as an operation may take.
        """
        try:
            names = await self._page_names()
            num_deleted = 0
            for first in range(0, len(names), _DELETED_AT_ONCE):
                async with asyncio.timeout(self._deadline_seconds):
                    num_deleted += await self._store.backend.delete(names[first : first + _DELETED_AT_ONCE])
            return num_deleted
        except StorageError:
            raise
        except TimeoutError as error:
            raise StorageError(f"no answer within {self._deadline_seconds:g} s") from error
        except Exception as error:
            _log.exception("a bug in the storage backend %s", self._store.backend.description)
            raise StorageError(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """Ends everything under way, and the backend. Raises nothing; may be called again."""
        self._checksums.shutdown(wait=False, cancel_futures=True)
        await self._store.aclose()

    async def _read(self, pages: Sequence[_Page]) -> list[GetOutcome] | Unanswered:
        started = self._clock()
        names, values = [page.name for page in pages], [page.value for page in pages]

        async def get() -> list[GetOutcome]:
            return one_each(await self._store.backend.get(names, values), names, GetOutcome)

        read = await self._store.call(get, kind="read", key=names[0], judge=read_trouble)
        if not isinstance(read, Unanswered):
            num_hits = sum(isinstance(outcome, Hit) for outcome in read)
            self._counters.transfers.add(
                "storage_to_host",
                num_pages=num_hits,
                num_bytes=num_hits * self._memory.value_bytes,
                seconds=self._clock() - started,
            )
        return read

    async def _settle(self, pages: Sequence[_Page], read: Sequence[GetOutcome]) -> list[FetchOutcome]:
        """Looks into what was read, and deletes what turns out corrupt."""
        checked = await self._on_thread(_verify, pages, read, self._namespace)
        outcomes = [_fetch_outcome(outcome) for outcome in checked]
        self._counters.num_outcomes.update(
            f"corrupt:{outcome.reason}" if isinstance(outcome, Corrupt) else name
            for outcome, name in zip(checked, outcomes, strict=True)
        )
        self._counters.num_failures.update({outcome.kind for outcome in checked if isinstance(outcome, Failed)})
        corrupt = [page.name for page, name in zip(pages, outcomes, strict=True) if name == "corrupt"]
        if corrupt:
            await self._store.call(lambda: self._store.backend.delete(corrupt), kind="write", key=corrupt[0])
        return outcomes

    async def _write(self, pages: Sequence[_Page]) -> list[bool]:
        """Which of the pages are stored now."""
        await self._on_thread(_seal, pages, self._namespace)
        items = [PutItem(page.name, page.value) for page in pages]
        started = self._clock()

        async def put() -> list[PutOutcome]:
            return one_each(await self._store.backend.put(items), items, PutOutcome)

        written = await self._store.call(put, kind="write", key=items[0].key, judge=write_trouble)
        if isinstance(written, Unanswered):
            await written.end()
            return [False] * len(pages)
        failures = [outcome for outcome in written if isinstance(outcome, Failed)]
        num_stored = len(pages) - len(failures)
        self._counters.num_failures.update({failure.kind for failure in failures})
        self._counters.transfers.add(
            "host_to_storage",
            num_pages=num_stored,
            num_bytes=num_stored * self._memory.value_bytes,
            seconds=self._clock() - started,
        )
        if failures and not self._is_refusing:
            _log.warning("the store does not take pages, %s: %s", self._store.backend.description, failures[0].reason)
        elif self._is_refusing and not failures:
            _log.info("the store takes pages again: %s", self._store.backend.description)
        self._is_refusing = bool(failures)
        return [isinstance(outcome, Stored) for outcome in written]

    async def _page_names(self) -> list[Key]:
        """Of all pages that the store has of the namespace. The namespace's manifest is none."""
        loop = asyncio.get_running_loop()
        manifest = manifest_key(self._namespace)
        names: list[Key] = []
        async with asyncio.timeout(self._deadline_seconds) as deadline:
            async for value in self._store.backend.scan():
                deadline.reschedule(loop.time() + self._deadline_seconds)
                if value.key.startswith(self._prefix) and value.key != manifest:
                    names.append(value.key)
        return names

    def _names(self, keys: Sequence[bytes]) -> list[Key]:
        return [Key(f"{self._prefix}{key.hex()}") for key in keys]

    def _pages(self, keys: Sequence[bytes], host_page_ids: PageIds) -> list[_Page]:
        values = map(self._memory.value, host_page_ids.tolist())
        return [_Page(*page) for page in zip(keys, self._names(keys), values, strict=True)]

    def _batches(self, indices: range) -> Iterator[range]:
        for first in range(0, len(indices), self._batch_pages):
            yield indices[first : first + self._batch_pages]

    async def _on_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._checksums, function, *arguments)


def _verify(pages: Sequence[_Page], read: Sequence[GetOutcome], namespace: bytes) -> list[GetOutcome]:
    """The outcomes, with every hit looked at."""
    return [
        page_format.verify(page.value, key=page.key, namespace=namespace) if isinstance(outcome, Hit) else outcome
        for page, outcome in zip(pages, read, strict=True)
    ]


def _seal(pages: Sequence[_Page], namespace: bytes) -> None:
    for page in pages:
        page_format.seal(page.value, key=page.key, namespace=namespace)


def _fetch_outcome(outcome: GetOutcome) -> FetchOutcome:
    match outcome:
        case Hit():
            return "hit"
        case Miss():
            return "miss"
        case Corrupt():
            return "corrupt"
        case Failed(kind="timeout"):
            return "timeout"
        case Failed():
            return "error"
        case _:
            assert_never(outcome)
