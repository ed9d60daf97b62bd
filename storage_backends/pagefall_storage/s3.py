"""The store in a bucket of S3, or of a server that speaks its protocol. See docs/storage-s3.md.

One object per value (`s3_objects`), requested by a few threads (`s3_threads`), no more of them than the store likes
(`s3_limiter`). Values are read straight into the caller's buffers, which a stalled request gives back at once when it
is cancelled (`s3_loan`). The store evicts nothing: a lifecycle rule of the bucket does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pagefall_storage.about import described
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.identity import new_mark
from pagefall_storage.keys import check_keys
from pagefall_storage.operations import Operations, Stop
from pagefall_storage.protocol import Failed, GetOutcome, Key, PutItem, PutOutcome, StoredValue, Usage
from pagefall_storage.s3_client import S3Clients, check_client
from pagefall_storage.s3_config import S3Config, parse_s3_config
from pagefall_storage.s3_errors import RequestFailed
from pagefall_storage.s3_loan import Loan
from pagefall_storage.s3_objects import MAX_DELETED_AT_ONCE, S3Objects
from pagefall_storage.s3_search import LeadingSearch
from pagefall_storage.s3_threads import STOPPED, RequestThreads

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_SETTLE_SECONDS: Final = 1.0
"""A cancelled write waits so long for the requests under way, so that what it did can be seen; then it leaves them."""


@described(config_type=S3Config, capabilities={"durable", "shared"})
async def open_s3(config: Mapping[str, object], *, value_bytes: int | None) -> S3Backend:
    """The factory of the backend `s3`. Asks the store for nothing: it may be down. Raises `StorageConfigError`."""
    del value_bytes  # objects may have any length
    parsed = parse_s3_config(config)
    clients = S3Clients(parsed)
    try:
        await asyncio.to_thread(check_client, clients)
    except ValueError as error:
        raise StorageConfigError(f'storage backend "s3": {error}') from error
    return S3Backend(parsed, clients)


class S3Backend:
    """One open bucket, used from one event loop. Others may have it open too."""

    def __init__(self, config: S3Config, clients: S3Clients) -> None:
        self._config = config
        self._clients = clients
        self._objects = S3Objects(clients, bucket=config.bucket, prefix=config.object_prefix)
        self._threads = RequestThreads(config.num_threads)
        self._operations = Operations()
        self._is_closed = False

    @property
    def description(self) -> str:
        config = self._config
        where = "" if config.endpoint_url is None else f" at {urlsplit(config.endpoint_url).netloc}"
        return f"s3://{config.bucket}/{config.object_prefix}{where}{', read-only' if config.read_only else ''}"

    async def contains(self, keys: Sequence[Key]) -> int:
        """Exact for up to `num_threads` keys; of more, a key that is missing between two others may not be seen."""
        check_keys(keys)

        async def operation(stop: Stop) -> int:
            search = LeadingSearch(len(keys), self._config.num_threads)
            while probes := search.probes():
                lengths = await self._ask(self._objects.num_bytes, [keys[index] for index in probes], stop)
                search.learn(probes, [length is not None for length in lengths])
            return search.num_leading

        return await self._operate(operation)

    async def get(self, keys: Sequence[Key], into: Sequence[memoryview]) -> list[GetOutcome]:
        check_keys(keys)
        wanted = [(key, Loan(buffer)) for key, buffer in zip(keys, into, strict=True)]
        if self._is_closed:
            return [_outcome(STOPPED) for _ in keys]

        async def operation(stop: Stop) -> list[GetOutcome]:
            read = await self._threads.spread(self._objects.read, wanted, stop, recall=_recall)
            return [_outcome(result) for result in read]

        return await self._operations.run(operation)

    async def put(self, items: Sequence[PutItem]) -> list[PutOutcome]:
        """Whoever is first stores a value; the others find it there, and leave it if it has the same length."""
        check_keys(item.key for item in items)
        if self._is_closed:
            return [_outcome(STOPPED) for _ in items]
        if self._config.read_only:
            return [Failed("error", "the store is read-only") for _ in items]

        async def operation(stop: Stop) -> list[PutOutcome]:
            lent = [(item.key, Loan(item.value)) for item in items]
            written = await self._threads.spread(
                self._objects.write, lent, stop, recall=_recall, settle_seconds=_SETTLE_SECONDS
            )
            return [_outcome(result) for result in written]

        return await self._operations.run(operation)

    async def delete(self, keys: Sequence[Key]) -> int:
        """Looks first, as S3 does not say what was there: a request for each key, and one for each 1,000 there."""
        check_keys(keys)
        if self._config.read_only and keys:
            raise StorageError("the store is read-only")

        async def operation(stop: Stop) -> int:
            distinct = list(dict.fromkeys(keys))
            lengths = await self._ask(self._objects.num_bytes, distinct, stop)
            present = [key for key, length in zip(distinct, lengths, strict=True) if length is not None]
            batches = [present[i : i + MAX_DELETED_AT_ONCE] for i in range(0, len(present), MAX_DELETED_AT_ONCE)]
            await self._ask(self._objects.delete, batches, stop, settle_seconds=_SETTLE_SECONDS)
            return len(present)

        return await self._operate(operation)

    async def scan(self) -> AsyncIterator[StoredValue]:
        """One request for 1,000 values, one after the other. S3 does not know when a value was used last."""
        token: str | None = None
        while True:
            (listing,) = await self._operate(partial(self._ask, self._objects.list, [token]))
            for value in listing.values:
                yield value
            if (token := listing.next_token) is None:
                return

    async def usage(self) -> Usage:
        """Lists everything, as `scan` does. A bucket has no limit that S3 would tell."""
        num_values = num_bytes = 0
        async for value in self.scan():
            num_values += 1
            num_bytes += value.num_bytes
        return Usage(num_values=num_values, num_bytes=num_bytes, max_bytes=None)

    async def identify(self) -> str | None:
        """By an object beside the values."""
        new = None if self._config.read_only else new_mark()
        (mark,) = await self._operate(partial(self._ask, self._objects.mark, [new]))
        return mark

    async def aclose(self) -> None:
        """Takes at most as long as a request may stall."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._operations.aclose()
        await self._threads.aclose()
        self._clients.close()

    async def _operate(self, operation: Callable[[Stop], Coroutine[Any, Any, ResultT]]) -> ResultT:
        if self._is_closed:
            raise StorageError("the store is closed")
        return await self._operations.run(operation)

    async def _ask(
        self, request: Callable[[ItemT], ResultT], items: Sequence[ItemT], stop: Stop, *, settle_seconds: float = 0.0
    ) -> list[ResultT]:
        """Raises `StorageError` if any of the requests failed."""
        results = []
        for result in await self._threads.spread(request, items, stop, settle_seconds=settle_seconds):
            if isinstance(result, RequestFailed):
                raise StorageError(result.reason) from result
            results.append(result)
        return results


def _recall(lent: tuple[Key, Loan]) -> bool:
    _, loan = lent
    return loan.recall()


def _outcome(result: ResultT | RequestFailed) -> ResultT | Failed:
    return Failed(result.kind, result.reason) if isinstance(result, RequestFailed) else result
