"""How a server comes by its store: at start, when it may be down, and while it runs, when another takes its place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from pagefall.config import TierConfig
from pagefall.errors import ConfigError
from pagefall.tiers.guarded_stack import open_guarded
from pagefall.tiers.late_store import LateStore
from pagefall_storage.errors import StorageConfigError, StorageError, UnknownBackendError
from pagefall_storage.protocol import Failed, Key, StorageBackend

T = TypeVar("T")

_log = logging.getLogger("pagefall.tiers")

OPENING_SECONDS: Final = 60.0
"""Longer than it takes to list a folder of a million pages. A store that is not open then is down."""

_SOME_KEY: Final = Key("is-anyone-there")


class OpenStore(NamedTuple):
    """`trouble`: why it does not answer now, one line; None if it does."""

    backend: StorageBackend
    trouble: str | None


class StoreRefusedError(Exception):
    """A store cannot be attached. The message is one line.

    `param`: the part of the request that is at fault; None where the store is down.
    """

    def __init__(self, reason: object, param: Literal["backend", "extra_config"] | None = None) -> None:
        super().__init__(" ".join(str(reason).split()))
        self.param: Literal["backend", "extra_config"] | None = param


async def open_at_start(config: TierConfig, *, value_bytes: int) -> OpenStore | None:
    """The store that the flags name; None if they name none. One that is down is used as soon as it answers.

    Raises `ConfigError` for settings that cannot be used, and for a store that is down where the flags require it.
    """
    name = config.hicache_storage_backend
    if name is None:
        return None
    extra = msgspec.json.decode(config.hicache_storage_backend_extra_config or "{}", type=dict[str, object])
    late = _late(name, extra, value_bytes=value_bytes, deadline_seconds=config.hicache_storage_deadline)
    try:
        opened = await _within(OPENING_SECONDS, late.opened)
    except StorageConfigError as error:
        raise ConfigError(str(error)) from error
    except StorageError as error:
        store = OpenStore(late, " ".join(str(error).split()))
    else:
        store = OpenStore(opened, await trouble_of(opened, seconds=config.hicache_storage_deadline))
    if store.trouble is not None:
        if config.hicache_storage_required:
            await store.backend.aclose()
            raise ConfigError(
                f"--hicache-storage-required: the store does not answer: {store.backend.description}: {store.trouble}"
            )
        _log.warning(
            "starting without the store, which is used as soon as it answers: %s: %s",
            store.backend.description,
            store.trouble,
        )
    return store


async def open_to_attach(
    name: str, extra_config: Mapping[str, Any], *, value_bytes: int, deadline_seconds: float
) -> StorageBackend:
    """A store that is open and answers. Raises `StoreRefusedError`, whatever goes wrong: others go on without it."""
    late = _late(name, extra_config, value_bytes=value_bytes, deadline_seconds=deadline_seconds)
    try:
        opened = await _within(OPENING_SECONDS, late.opened)
    except UnknownBackendError as error:
        raise StoreRefusedError(error, "backend") from error
    except StorageConfigError as error:
        raise StoreRefusedError(error, "extra_config") from error
    except StorageError as error:
        await late.aclose()
        raise StoreRefusedError(error) from error
    except Exception as error:
        _log.exception("a bug in the storage backend %s", name)
        raise StoreRefusedError(f"{type(error).__name__}: {error}") from error
    trouble = await trouble_of(opened, seconds=deadline_seconds)
    if trouble is not None:
        with suppress(StorageError):
            await _within(deadline_seconds, opened.aclose)
        raise StoreRefusedError(f"{opened.description}: {trouble}")
    return opened


async def trouble_of(backend: StorageBackend, *, seconds: float) -> str | None:
    """Why the store does not answer within so many seconds, one line; None if it does. Raises nothing.

    It is asked for a value that it has not: all that could be wrong with it is wrong with that too.
    """

    async def ask() -> None:
        await backend.contains([_SOME_KEY])
        for outcome in await backend.get([_SOME_KEY], [memoryview(bytearray(1))]):
            if isinstance(outcome, Failed):
                raise StorageError(outcome.reason)

    try:
        await _within(seconds, ask)
    except StorageError as error:
        return " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way, and it is told
        _log.exception("a bug in the storage backend %s", backend.description)
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _late(name: str, extra_config: Mapping[str, Any], *, value_bytes: int, deadline_seconds: float) -> LateStore:
    """The store, not opened yet. `deadline_seconds` is for its operations."""
    return LateStore(
        name, partial(open_guarded, name, extra_config, value_bytes=value_bytes, deadline_seconds=deadline_seconds)
    )


async def _within(seconds: float, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What it returns or raises; `StorageError` when it takes longer. Nobody waits for the end of what was given up."""
    task = asyncio.ensure_future(operation())
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        is_done = task.done()
        task.cancel()
    if not is_done or task.cancelled():
        raise StorageError(f"no answer within {seconds:g} s")
    return task.result()
