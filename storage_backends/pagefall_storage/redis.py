"""The store in a Redis server, a Redis Cluster, or what else speaks its protocol: for servers that share one cache.

One string per value, written by one `SET`, so that it is there as a whole or not at all. Batches are cut into slices,
each a pipeline over one of a few connections (`redis_servers`, `redis_cluster`), whose replies go from the socket
straight into the caller's buffers (`redis_exchange`, `redis_replies`). Nothing is asked of a server before there is
something to ask: the store opens while it is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from pagefall_storage.about import described
from pagefall_storage.errors import StorageError
from pagefall_storage.identity import MARK, new_mark
from pagefall_storage.keys import check_keys, is_key
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
from pagefall_storage.redis_cluster import Cluster
from pagefall_storage.redis_commands import command, set_commands
from pagefall_storage.redis_config import ClusterTarget, RedisConfig, RedisSettings, describe, parse_redis_config
from pagefall_storage.redis_listing import list_values, read_info
from pagefall_storage.redis_replies import Replies, ReplyError, Values
from pagefall_storage.redis_servers import RedisUnavailableError, Server, Servers, server_for

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_SLICE_BYTES: Final = 4 * 2**20
"""Of values in one pipeline: what the server may have to keep ready for one connection."""
_SLICE_KEYS: Final = 256

_CLOSED: Final = "the store was closed meanwhile"
_READ_ONLY: Final = "the store is used read-only"


@described(config_type=RedisConfig, capabilities={"durable", "shared", "evicts", "last_used"})
async def open_redis(config: Mapping[str, object], *, value_bytes: int | None) -> RedisBackend:
    """The factory of the backend `redis`. Raises `StorageConfigError`. Connects to nothing yet."""
    return RedisBackend(parse_redis_config(config))


class RedisBackend:
    """One open store, used from one event loop. Others may use the same Redis."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._config = settings.config
        self._servers: Servers = (
            Cluster(settings, settings.target)
            if isinstance(settings.target, ClusterTarget)
            else server_for(settings, settings.target)
        )
        self._prefix = self._config.key_prefix.encode()
        self._operations = Operations()
        self._has_warned_of_expiry = False
        self._is_closed = False

    @property
    def description(self) -> str:
        ttl = "" if self._config.ttl_seconds is None else f", for {self._config.ttl_seconds} s after use"
        read_only = ", read-only" if self._config.read_only else ""
        return f'{describe(self._settings)}, names begin with "{self._config.key_prefix}"{ttl}{read_only}'

    async def contains(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        return await self._run(partial(self._contains, keys))

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        if len(keys) != len(into):
            raise ValueError(f"{len(keys)} keys and {len(into)} buffers")
        try:
            return await self._run(partial(self._get, keys, into))
        except StorageError as error:
            return [_failed(error)] * len(keys)

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        check_keys(item.key for item in items)
        if self._config.read_only:
            return [Failed("error", _READ_ONLY)] * len(items)
        try:
            return await self._run(partial(self._put, items))
        except StorageError as error:
            return [_failed(error)] * len(items)

    async def delete(self, keys: Sequence[Key]) -> int:
        check_keys(keys)
        if self._config.read_only:
            raise StorageError(_READ_ONLY)
        return await self._run(partial(self._delete, keys))

    async def scan(self) -> AsyncIterator[StoredValue]:
        """Where Redis shrinks its table meanwhile, a value may come twice."""
        for server in await self._run(self._servers.all):
            cursor: int | None = 0
            while cursor is not None:
                cursor, values = await self._run(partial(list_values, server, self._prefix, cursor))
                for name, num_bytes, last_used in values:
                    if is_key(name):
                        yield StoredValue(Key(name), num_bytes, last_used)

    async def usage(self) -> Usage:
        """Counts this store's values, one by one. `max_bytes` and `num_evicted` are the servers', for all they hold;
        None and 0 where they do not tell.
        """
        num_values = num_bytes = 0
        async for value in self.scan():
            num_values += 1
            num_bytes += value.num_bytes
        servers = await self._run(self._servers.all)
        limits = [await self._run(partial(self._note_evictions, server)) for server in servers]
        return Usage(
            num_values=num_values,
            num_bytes=num_bytes,
            max_bytes=sum(limits) if all(limits) else None,
            num_evicted=sum(server.evictions.num_evicted for server in servers),
        )

    async def identify(self) -> str | None:
        """By a string beside the values. Should Redis evict it there is another one, for everybody."""
        return await self._run(self._identify)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._operations.aclose()
        await self._servers.aclose()

    async def _run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Raises `StorageError`, also where closing the store has ended it."""
        if self._is_closed:
            raise StorageError("the store is closed")

        async def operation(stop: Stop) -> ResultT:
            stop.on_set(partial(_cancel, asyncio.current_task()))
            try:
                return await work()
            except asyncio.CancelledError:
                raise StorageError(_CLOSED) from None

        return await self._operations.run(operation)

    async def _contains(self, keys: Sequence[Key]) -> int:
        for first in range(0, len(keys), _SLICE_KEYS):
            replies = await self._each(b"EXISTS", self._names(keys[first : first + _SLICE_KEYS]))
            for index, reply in enumerate(replies):
                if _is_elsewhere(reply) or not _number(reply):
                    return first + index
        return len(keys)

    async def _delete(self, keys: Sequence[Key]) -> int:
        num_deleted = 0
        for first in range(0, len(keys), _SLICE_KEYS):
            replies = await self._each(b"UNLINK", self._names(keys[first : first + _SLICE_KEYS]))
            num_deleted += sum(map(_number, replies))
        return num_deleted

    async def _get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        names = self._names(keys)
        outcomes: list[GetOutcome] = [Failed("error", _CLOSED)] * len(keys)

        async def read(server: Server, indices: Sequence[int]) -> None:
            wanted = [(names[i], into[i]) for i in indices]
            for i, outcome in zip(indices, await self._read(server, wanted), strict=True):
                outcomes[i] = outcome

        groups = await self._servers.group(names)
        await _all(
            read(server, indices)
            for server, its_indices in groups
            for indices in _slices(its_indices, [buffer.nbytes for buffer in into])
        )
        return outcomes

    async def _put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        names = self._names([item.key for item in items])
        outcomes: list[PutOutcome] = [Failed("error", _CLOSED)] * len(items)

        async def write(server: Server, indices: Sequence[int]) -> None:
            pairs = [(names[i], items[i].value) for i in indices]
            for i, outcome in zip(indices, await self._write(server, pairs), strict=True):
                outcomes[i] = outcome

        groups = await self._servers.group(names)
        await _all(
            write(server, indices)
            for server, its_indices in groups
            for indices in _slices(its_indices, [item.value.nbytes for item in items])
        )
        return outcomes

    async def _read(self, server: Server, wanted: Sequence[tuple[bytes, memoryview]]) -> list[GetOutcome]:
        """One slice. A value that is too long does not come whole: one byte too many tells."""
        ranges = [command(b"GETRANGE", name, 0, buffer.nbytes) for name, buffer in wanted]
        outcomes = await _read_values(server, ranges, [buffer for _, buffer in wanted])
        # GETRANGE gives an empty string also where there is nothing.
        empty = [i for i, outcome in enumerate(outcomes) if outcome is None]
        if empty:
            again = [command(b"GET", wanted[i][0]) for i in empty]
            looked_at = await _read_values(server, again, [wanted[i][1] for i in empty], can_be_empty=True)
            for i, outcome in zip(empty, looked_at, strict=True):
                outcomes[i] = outcome
        hits = [name for (name, _), outcome in zip(wanted, outcomes, strict=True) if isinstance(outcome, Hit)]
        if hits and self._config.ttl_seconds is not None and not self._config.read_only:
            await self._expire_later(server, hits, self._config.ttl_seconds)
        return [outcome for outcome in outcomes if outcome is not None]

    async def _expire_later(self, server: Server, names: Sequence[bytes], ttl_seconds: int) -> None:
        """Where it fails the values have been read all the same, and a server that is gone shows soon enough."""
        try:
            replies = await server.call([command(b"EXPIRE", name, ttl_seconds) for name in names])
        except RedisUnavailableError:
            return
        refusals = [reply for reply in replies if isinstance(reply, ReplyError)]
        if refusals and not self._has_warned_of_expiry:
            self._has_warned_of_expiry = True
            logger.warning("reading a value from %s does not put its expiry off: %s", self.description, refusals[0])

    async def _write(self, server: Server, pairs: Sequence[tuple[bytes, memoryview]]) -> list[PutOutcome]:
        answer = Replies(len(pairs))
        failure: Failed | None = None
        try:
            if not server.evictions.is_known:
                await self._note_evictions(server)
            await server.ask(set_commands(pairs, ttl_seconds=self._config.ttl_seconds), answer)
            await server.review(answer.replies)
        except RedisUnavailableError as error:
            failure = _failed(error)
        outcomes: list[PutOutcome] = [_put_outcome(reply) for reply in answer.replies]
        return outcomes + [failure or Failed("error", _CLOSED)] * (len(pairs) - len(outcomes))

    async def _identify(self) -> str | None:
        name = self._prefix + MARK.encode()
        [(server, _)] = await self._servers.group([name])
        make = command(b"SET", name, new_mark().encode(), b"NX")
        *_, mark = await server.call([*([] if self._config.read_only else [make]), command(b"GET", name)])
        if isinstance(mark, ReplyError):
            raise StorageError(str(mark))
        return mark.decode(errors="replace") if isinstance(mark, bytes) else None

    async def _each(self, name: bytes, keys: Sequence[bytes]) -> list[object]:
        """The reply to a command of each key alone. Raises `RedisUnavailableError`."""
        replies: list[object] = [None] * len(keys)

        async def call(server: Server, indices: Sequence[int]) -> None:
            its_replies = await server.call([command(name, keys[i]) for i in indices])
            for i, reply in zip(indices, its_replies, strict=True):
                replies[i] = reply

        await _all(call(server, indices) for server, indices in await self._servers.group(keys))
        return replies

    async def _note_evictions(self, server: Server) -> int:
        """Its limit for memory in bytes, 0 if it has none or does not tell."""
        info = await read_info(server)
        server.evictions.note(info.get("evicted_keys", 0))
        return info.get("maxmemory", 0)

    def _names(self, keys: Sequence[Key]) -> list[bytes]:
        return [self._prefix + key.encode() for key in keys]


async def _read_values(
    server: Server, commands: Sequence[bytes], buffers: Sequence[memoryview], *, can_be_empty: bool = False
) -> list[GetOutcome | None]:
    """None for a value that is empty, or perhaps not there, unless `can_be_empty` says that an empty one is one."""
    answer = Values(buffers)
    failure: Failed | None = None
    try:
        await server.ask([b"".join(commands)], answer)
        await server.review(answer.values)
    except RedisUnavailableError as error:
        failure = _failed(error)
    outcomes: list[GetOutcome | None] = []
    for value, buffer in zip(answer.values, buffers, strict=False):
        match value:
            case None:
                outcomes.append(Miss())
            case 0 if not can_be_empty:
                outcomes.append(None)
            case int():
                outcomes.append(_length_outcome(value, buffer.nbytes))
            case ReplyError() if _is_elsewhere(value):
                outcomes.append(Miss())
            case ReplyError(code="WRONGTYPE"):
                outcomes.append(Corrupt("not a string"))
            case ReplyError():
                outcomes.append(Failed("error", str(value)))
    return outcomes + [failure or Failed("error", _CLOSED)] * (len(buffers) - len(outcomes))


def _is_elsewhere(reply: object) -> bool:
    """Of a cluster's slot that is moving to another node: it may be there already. That counts as not there."""
    return isinstance(reply, ReplyError) and reply.code == "ASK"


def _length_outcome(num_bytes: int, expected: int) -> GetOutcome:
    if num_bytes == expected:
        return Hit()
    return Corrupt("short" if num_bytes < expected else "long")


def _put_outcome(reply: object) -> PutOutcome:
    if isinstance(reply, ReplyError):
        return Failed("full" if reply.code == "OOM" else "error", str(reply))
    return Stored()


def _failed(error: StorageError) -> Failed:
    return Failed(error.kind if isinstance(error, RedisUnavailableError) else "error", str(error))


def _number(reply: object) -> int:
    if isinstance(reply, ReplyError):
        raise StorageError(str(reply))
    assert isinstance(reply, int)
    return reply


def _slices(indices: Sequence[int], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cut where a slice has enough, of bytes or of values."""
    first, num_bytes = 0, 0
    for end, index in enumerate(indices):
        if end > first and (num_bytes + sizes[index] > _SLICE_BYTES or end - first == _SLICE_KEYS):
            yield indices[first:end]
            first, num_bytes = end, 0
        num_bytes += sizes[index]
    if first < len(indices):
        yield indices[first:]


def _cancel(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()


async def _all(work: Iterator[Any]) -> None:
    """Runs all at once and returns when all have ended, also when it is cancelled. Raises what the first one raised."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
