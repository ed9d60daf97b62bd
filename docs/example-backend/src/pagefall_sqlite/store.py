"""The store in one SQLite file, which several servers on one machine may share. It never forgets by itself."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Final, TypeVar

import msgspec

from pagefall_storage.about import described
from pagefall_storage.config import parse_config
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.keys import check_keys
from pagefall_storage.operations import Operations, Stop
from pagefall_storage.protocol import (
    Corrupt,
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

T = TypeVar("T")


class SqliteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: the file, made if it is not there. `busy_seconds`: how long to wait for another server that writes."""

    path: str
    busy_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0


@described(config_type=SqliteConfig, capabilities={"durable", "shared", "last_used"})
async def open_sqlite(config: Mapping[str, object], *, value_bytes: int | None) -> SqliteBackend:
    """The factory of the backend `sqlite`. Raises `StorageConfigError`."""
    del value_bytes  # values may have any length
    parsed = parse_config(config, SqliteConfig, where='storage backend "sqlite"')
    thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-store")
    try:
        connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, parsed)
    except sqlite3.Error as error:
        thread.shutdown()
        raise StorageConfigError(f'storage backend "sqlite": path: cannot use {parsed.path}: {error}') from error
    return SqliteBackend(parsed.path, connection, thread)


def _connect(config: SqliteConfig) -> sqlite3.Connection:
    connection = sqlite3.connect(config.path, timeout=config.busy_seconds)
    connection.execute("PRAGMA journal_mode = WAL")  # readers and a writer do not wait for each other
    connection.execute("PRAGMA synchronous = NORMAL")  # a crash loses the last values and damages none
    with connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS pages (key TEXT PRIMARY KEY, value BLOB NOT NULL, last_used REAL NOT NULL)"
        )
    return connection


_STOPPED: Final = Failed("error", "the store was closed meanwhile")


class SqliteBackend:
    """One open file. SQLite is used on one thread alone, the store's own."""

    def __init__(self, path: str, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._path = path
        self._connection = connection
        self._thread = thread
        self._operations = Operations()
        self._is_closed = False

    @property
    def description(self) -> str:
        return f"SQLite file {self._path}"

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        wanted = list(zip(keys, into, strict=True))
        try:
            return await self._run(partial(self._get, wanted))
        except StorageError as error:
            return [_failed(error) for _ in wanted]

    def _get(self, wanted: Sequence[tuple[Key, memoryview]], stop: Stop) -> list[GetOutcome]:
        outcomes = [_STOPPED if stop.is_set() else self._read(key, buffer) for key, buffer in wanted]
        used = [key for (key, _), outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, Hit)]
        with self._connection:
            now = time.time()
            self._connection.executemany("UPDATE pages SET last_used = ? WHERE key = ?", [(now, key) for key in used])
        return outcomes

    def _read(self, key: Key, buffer: memoryview) -> GetOutcome:
        row = self._connection.execute("SELECT value FROM pages WHERE key = ?", (key,)).fetchone()
        if row is None:
            return Miss()
        (value,) = row
        if len(value) != buffer.nbytes:
            return Corrupt("short" if len(value) < buffer.nbytes else "long")
        buffer[:] = value
        return Hit()

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        check_keys(item.key for item in items)
        try:
            return await self._run(partial(self._put, items))
        except StorageError as error:
            return [_failed(error) for _ in items]

    def _put(self, items: Sequence[PutItem], stop: Stop) -> list[PutOutcome]:
        """In one transaction, so that of each value all is there or nothing."""
        if stop.is_set():
            return [_STOPPED for _ in items]
        now = time.time()
        with self._connection:
            self._connection.executemany(
                "INSERT INTO pages VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
                "last_used = excluded.last_used WHERE length(value) != length(excluded.value)",
                [(item.key, item.value, now) for item in items],
            )
        return [Stored() for _ in items]

    async def contains(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        return await self._run(partial(self._contains, keys))

    def _contains(self, keys: Sequence[Key], stop: Stop) -> int:
        for index, key in enumerate(keys):
            if stop.is_set() or not self._connection.execute("SELECT 1 FROM pages WHERE key = ?", (key,)).fetchone():
                return index
        return len(keys)

    async def delete(self, keys: Sequence[Key]) -> int:
        check_keys(keys)

        def delete(stop: Stop) -> int:
            with self._connection:
                return sum(self._connection.execute("DELETE FROM pages WHERE key = ?", (k,)).rowcount for k in keys)

        return await self._run(delete)

    async def scan(self) -> AsyncIterator[StoredValue]:
        last = ""
        while rows := await self._run(partial(self._list, last)):
            for key, num_bytes, last_used in rows:
                yield StoredValue(Key(key), num_bytes, last_used)
            last = rows[-1][0]

    def _list(self, after: str, stop: Stop) -> list[tuple[str, int, float]]:
        query = "SELECT key, length(value), last_used FROM pages WHERE key > ? ORDER BY key LIMIT 1000"
        return self._connection.execute(query, (after,)).fetchall()

    async def usage(self) -> Usage:
        def count(stop: Stop) -> tuple[int, int]:
            query = "SELECT count(*), coalesce(sum(length(value)), 0) FROM pages"
            num_values, num_bytes = self._connection.execute(query).fetchone()
            return num_values, num_bytes

        num_values, num_bytes = await self._run(count)
        return Usage(num_values=num_values, num_bytes=num_bytes, max_bytes=None)

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._operations.aclose()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    async def _run(self, function: Callable[[Stop], T]) -> T:
        """What the function returns, on the store's thread. Cancelling sets its `Stop` and waits for its end.

        Raises `StorageError` for whatever SQLite raises.
        """
        if self._is_closed:
            raise StorageError("the store is closed")

        async def operation(stop: Stop) -> T:
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, function, stop)
            except sqlite3.Error as error:
                raise StorageError(f"{self._path}: {error}") from error

        return await self._operations.run(operation)


def _failed(error: StorageError) -> Failed:
    is_full = getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return Failed("full" if is_full else "error", str(error))
