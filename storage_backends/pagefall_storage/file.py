"""The store in a folder: local NVMe, or a file system that several servers share.

One file per value (`file_layout`), written aside and renamed (`file_io`, `file_temp`), read straight into the caller's
buffers by a few threads (`file_threads`). What is there and what must go is decided on the event loop (`file_index`);
threads touch files, never the index.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from pagefall_storage.about import described
from pagefall_storage.config import ByteSize, parse_config
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.file_index import Index, LruValues
from pagefall_storage.file_io import Write, read_value, remove_value, stored_bytes, touch_if_stored, write_value
from pagefall_storage.file_layout import Layout
from pagefall_storage.file_rescan import RescanSchedule
from pagefall_storage.file_temp import TempFolder, clean_up
from pagefall_storage.file_threads import FileThreads
from pagefall_storage.identity import mark_of_folder
from pagefall_storage.keys import check_keys
from pagefall_storage.operations import Stop
from pagefall_storage.protocol import (
    Failed,
    GetOutcome,
    Hit,
    Key,
    Miss,
    PutItem,
    PutOutcome,
    Stored,
    StoredValue,
    Usage,
)

logger = logging.getLogger(__name__)

PATH_VARIABLES: Final = ("PAGEFALL_STORAGE_DIR", "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR")
_STOPPED: Final = Failed("error", "the store was closed meanwhile")
_MAX_WAIT_FOR_SCAN_SECONDS: Final = 1.0


class FileConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: the folder, made if it is not there; without it, the first variable of `PATH_VARIABLES` that is set.

    `max_bytes` of values are kept in the folder, those used last, whichever process wrote them; None: no quota. Lengths
    of files count, not blocks. `min_free_bytes` of the file system stay free: values are evicted for that, and where it
    would not help, nothing is written. None: 1 GiB, or a fiftieth of the file system if that is less.
    `fsync`: a value is stored only once it is on the disk.
    """

    path: str | None = None
    max_bytes: ByteSize | None = None
    min_free_bytes: ByteSize | None = None
    fsync: bool = False
    num_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4


@described(config_type=FileConfig, capabilities={"durable", "shared", "evicts", "last_used"})
async def open_file(config: Mapping[str, object], *, value_bytes: int | None) -> FileBackend:
    """The factory of the backend `file`. Raises `StorageConfigError`, and `StorageError` if the disk is not well."""
    parsed = parse_config(config, FileConfig, where='storage backend "file"')
    path = parsed.path or next(filter(None, map(os.environ.get, PATH_VARIABLES)), None)
    if path is None:
        raise StorageConfigError(
            f'storage backend "file": give {{"path": ...}} in its extra config, or set {PATH_VARIABLES[0]}'
        )
    if parsed.max_bytes is not None and value_bytes is not None and parsed.max_bytes < value_bytes:
        raise StorageConfigError(
            f'storage backend "file": max_bytes: {parsed.max_bytes} is less than one value, {value_bytes} bytes'
        )
    try:
        return await asyncio.to_thread(FileBackend, Path(path), parsed)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageConfigError(f'storage backend "file": cannot use {path}: not a folder') from error
    except OSError as error:  # a disk that is not mounted, not writable or not well, all of which may pass
        raise StorageError(f"cannot use {path}: {error.strerror or error}") from error


class FileBackend:
    """One open folder, used from one event loop. Other processes may have it open too."""

    def __init__(
        self, root: Path, config: FileConfig, *, write: Write = os.write, schedule: RescanSchedule | None = None
    ) -> None:
        """Cleans up after processes that died, and lists the folder. Blocks; raises `OSError`.

        `write` stands in for `os.write`, `schedule` for the usual one.
        """
        root = root.absolute()
        self._layout = Layout(root)
        self._config = config
        self._write = write
        root.mkdir(parents=True, exist_ok=True)
        clean_up(root)
        self._temp = TempFolder(root)
        # Asked through a descriptor, so that the answer is the same file system's even if the folder is removed.
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

        started_at = time.monotonic()
        values = self._layout.scan() or LruValues()
        now = time.monotonic()
        self._schedule = schedule or RescanSchedule(max_bytes=config.max_bytes, now=now, seconds=now - started_at)
        self._index = Index(values, max_bytes=config.max_bytes, min_free_bytes=self._min_free_bytes())
        for key, _ in self._index.trim():
            remove_value(self._layout.path(key), temp=self._temp)

        self._threads = FileThreads(config.num_threads)
        self._scan_thread = ThreadPoolExecutor(1, thread_name_prefix="pagefall-file-scan")
        self._scan: asyncio.Task[None] | None = None
        self._stop_scan = Stop()
        self._is_closed = False

    @property
    def description(self) -> str:
        quota = "no quota" if self._config.max_bytes is None else f"up to {self._config.max_bytes / 1e9:g} GB"
        return f"files in {self._layout.root}, {quota}, values now: {len(self._index)}"

    async def contains(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        self._check_open()
        num_known = next((i for i, key in enumerate(keys) if self._index.get(key) is None), len(keys))
        if num_known == len(keys):
            return num_known
        return num_known + await self._threads.operate(partial(self._look_for, keys[num_known:]))

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        wanted = list(zip(keys, into, strict=True))
        if self._is_closed:
            return [_STOPPED for _ in keys]
        return await self._threads.operate(partial(self._get, wanted))

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        check_keys(item.key for item in items)
        if self._is_closed:
            return [_STOPPED for _ in items]
        return await self._threads.operate(partial(self._put, items))

    async def delete(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        self._check_open()
        return await self._threads.operate(partial(self._delete, keys))

    async def scan(self) -> AsyncIterator[StoredValue]:
        self._check_open()
        try:
            for shard in await asyncio.to_thread(self._layout.shards):
                for value in await asyncio.to_thread(self._layout.values_in, shard):
                    yield value
        except OSError as error:
            raise StorageError(f"cannot list {self._layout.root}: {error}") from error

    async def usage(self) -> Usage:
        """As of the last rescan, for what other processes did."""
        self._check_open()
        if self._schedule.is_due(now=time.monotonic(), is_evicting=False):
            await asyncio.shield(self._rescan())
        return Usage(
            num_values=len(self._index),
            num_bytes=self._index.num_bytes,
            max_bytes=self._config.max_bytes,
            num_evicted=self._index.num_evicted,
        )

    async def identify(self) -> str:
        """By a file in the folder, which whoever shares it sees too, whatever it is called there."""
        try:
            return await self._threads.run(partial(mark_of_folder, self._layout.root))
        except OSError as error:
            raise StorageError(f"no mark in {self._layout.root}: {error.strerror or error}") from error

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_scan.set()
        await self._threads.aclose()
        if self._scan is not None:
            await asyncio.wait([self._scan])
        self._scan_thread.shutdown()
        self._temp.close()
        os.close(self._root_fd)

    async def _look_for(self, keys: Sequence[Key], stop: Stop) -> int:
        def find() -> list[tuple[Key, int]]:
            found: list[tuple[Key, int]] = []
            for key in keys:
                num_bytes = None if stop.is_set() else stored_bytes(self._layout.path(key))
                if num_bytes is None:
                    break
                found.append((key, num_bytes))
            return found

        try:
            found = await self._threads.run(find)
        except OSError as error:
            raise StorageError(f"cannot look into {self._layout.root}: {error}") from error
        for key, num_bytes in found:
            self._index.add(key, num_bytes)
        return len(found)

    async def _get(self, wanted: Sequence[tuple[Key, memoryview]], stop: Stop) -> list[GetOutcome]:
        outcomes: list[GetOutcome] = []
        read = await self._threads.spread(self._read_value, wanted, stop)
        for (key, buffer), outcome in zip(wanted, read, strict=True):
            if isinstance(outcome, Hit):
                self._index.add(key, buffer.nbytes)
            elif isinstance(outcome, Miss):
                self._index.remove(key)
            outcomes.append(outcome or _STOPPED)
        return outcomes

    async def _put(self, items: Sequence[PutItem], stop: Stop) -> list[PutOutcome]:
        outcomes: list[PutOutcome] = [Stored() for _ in items]
        known = [i for i, item in enumerate(items) if self._index.get(item.key) == item.value.nbytes]
        new = set(range(len(items))).difference(known)
        are_stored = await self._threads.spread(self._touch_if_stored, [items[i] for i in known], stop)
        for i, is_stored in zip(known, are_stored, strict=True):
            if is_stored:
                self._index.add(items[i].key, items[i].value.nbytes)
            else:
                self._index.remove(items[i].key)
                new.add(i)
        if new:
            written = await self._put_new([items[i] for i in sorted(new)], stop)
            for i, outcome in zip(sorted(new), written, strict=True):
                outcomes[i] = outcome
        return outcomes

    async def _put_new(self, items: Sequence[PutItem], stop: Stop) -> list[PutOutcome]:
        """Makes room in the order of the items, so that of too many the first are kept, and then writes."""
        free_bytes = await self._threads.run(self._free_bytes)
        await self._rescan_if_due(sum(item.value.nbytes for item in items), free_bytes)
        outcomes: list[PutOutcome] = []
        admitted = []
        victims: list[tuple[Key, int]] = []
        for i, item in enumerate(items):
            evicted = self._index.reserve(item.value.nbytes, free_bytes=free_bytes)
            if evicted is None:
                outcomes.append(Failed("full", f"no room for {item.value.nbytes} bytes in {self._layout.root}"))
                continue
            free_bytes += sum(num_bytes for _, num_bytes in evicted)
            victims += evicted
            admitted.append(i)
            outcomes.append(_STOPPED)

        try:
            problem = await self._remove_victims(victims, stop)
            to_write = [] if problem else [items[i] for i in admitted]
            written = await self._threads.spread(self._write_value, to_write, stop)
        finally:
            for i in admitted:
                self._index.release(items[i].value.nbytes)
        for i, outcome in zip(admitted, written or [problem] * len(admitted), strict=True):
            outcomes[i] = outcome or _STOPPED
            if isinstance(outcome, Stored):
                self._index.add(items[i].key, items[i].value.nbytes)
                self._schedule.note_written(items[i].value.nbytes)
        return outcomes

    async def _remove_victims(self, victims: Sequence[tuple[Key, int]], stop: Stop) -> Failed | None:
        """None if all are gone; else why the room that they were to make is not there."""
        problem: Failed | None = None
        removed = await self._threads.spread(self._remove_value, [key for key, _ in victims], stop)
        for (key, num_bytes), outcome in zip(victims, removed, strict=True):
            if not isinstance(outcome, bool):
                self._index.restore(key, num_bytes)
                problem = _STOPPED if outcome is None else Failed("error", f"cannot evict {key}: {outcome}")
        return problem

    async def _delete(self, keys: Sequence[Key], stop: Stop) -> int:
        num_removed = 0
        problem: OSError | None = None
        for key, outcome in zip(keys, await self._threads.spread(self._remove_value, keys, stop), strict=True):
            match outcome:
                case bool():
                    self._index.remove(key)
                    num_removed += outcome
                case OSError():
                    problem = outcome
        if problem is not None:
            raise StorageError(f"cannot delete in {self._layout.root}: {problem}") from problem
        return num_removed

    async def _rescan_if_due(self, num_bytes: int, free_bytes: int) -> None:
        """Before `num_bytes` are written. Waits for the rescan unless they are known to take long here."""
        is_evicting = not self._index.has_room(num_bytes, free_bytes=free_bytes)
        if self._schedule.is_due(now=time.monotonic(), is_evicting=is_evicting):
            scan = self._rescan()
            if self._schedule.seconds < _MAX_WAIT_FOR_SCAN_SECONDS:
                await asyncio.wait([scan])

    def _rescan(self) -> asyncio.Task[None]:
        """The rescan under way, or a new one."""
        if self._scan is None or self._scan.done():
            self._scan = asyncio.create_task(self._scan_again())
        return self._scan

    async def _scan_again(self) -> None:
        def scan() -> LruValues | None:
            clean_up(self._layout.root)
            return self._layout.scan(is_stopped=self._stop_scan.is_set)

        started_at = time.monotonic()
        self._index.begin_rescan()
        found: LruValues | None = None
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._scan_thread, scan)
        except OSError as error:
            logger.warning("cannot list %s: %s; what others did there is not known", self._layout.root, error)
        finally:
            self._index.end_rescan(found)
            now = time.monotonic()
            self._schedule.note_scanned(now=now, seconds=now - started_at)
        victims = self._index.trim()
        if victims and not self._is_closed:
            await self._threads.operate(partial(self._remove_victims, victims))

    def _read_value(self, wanted: tuple[Key, memoryview]) -> GetOutcome:
        key, buffer = wanted
        return read_value(self._layout.path(key), buffer)

    def _touch_if_stored(self, item: PutItem) -> bool:
        return touch_if_stored(self._layout.path(item.key), item.value.nbytes)

    def _write_value(self, item: PutItem) -> PutOutcome:
        path = self._layout.path(item.key)
        if touch_if_stored(path, item.value.nbytes):  # by another process
            return Stored()
        return write_value(path, item.value, temp=self._temp, fsync=self._config.fsync, write=self._write)

    def _remove_value(self, key: Key) -> bool | OSError:
        try:
            return remove_value(self._layout.path(key), temp=self._temp)
        except OSError as error:
            return error

    def _free_bytes(self) -> int:
        status = os.statvfs(self._root_fd)
        return status.f_bavail * status.f_frsize

    def _min_free_bytes(self) -> int:
        if self._config.min_free_bytes is not None:
            return self._config.min_free_bytes
        status = os.statvfs(self._root_fd)
        return min(2**30, status.f_blocks * status.f_frsize // 50)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError("the store is closed")
