"""From the name of a backend to an open one.

A plug-in is a distribution with an entry point in the group `pagefall.storage_backends`: its name is the backend's,
its object a `BackendFactory`. For example, in a plug-in's pyproject.toml:

    [project.entry-points."pagefall.storage_backends"]
    mystore = "my_package.store:open_mystore"
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, cast

from pagefall_storage.config import parse_config
from pagefall_storage.errors import StorageConfigError, UnknownBackendError
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.throttle import ThrottleConfig, Throttled

ENTRY_POINT_GROUP: Final = "pagefall.storage_backends"

_BUILT_IN: Final = {
    "file": "pagefall_storage.file:open_file",
    "memory": "pagefall_storage.memory:open_memory",
    "redis": "pagefall_storage.redis:open_redis",
    "s3": "pagefall_storage.s3:open_s3",
}


class BackendFactory(Protocol):
    """Opens one kind of store."""

    async def __call__(self, config: Mapping[str, object], *, value_bytes: int | None) -> StorageBackend:
        """`config` is the user's JSON object; `config.parse_config` reads it. `value_bytes` is the length of every
        value to come, None where that is not known. Raises `StorageConfigError` if the configuration cannot be used,
        and may raise `StorageError` if it can be, but not now: the store is down. Then it is tried again.
        """


def known_backends() -> tuple[str, ...]:
    """Every name that `open_backend` takes, sorted. Imports no backend."""
    return tuple(sorted(_BUILT_IN.keys() | entry_points(group=ENTRY_POINT_GROUP).names))


async def open_backend(name: str, extra_config: Mapping[str, object], *, value_bytes: int | None) -> StorageBackend:
    """Opens the backend `name`, ready for use.

    The field `throttle` of `extra_config` is not the backend's: it puts any of them behind a slower link (see
    `throttle.ThrottleConfig`). Raises `UnknownBackendError` (an unknown name, a plug-in that cannot be loaded),
    `StorageConfigError` (a configuration that cannot be used), or `StorageError` (the store is down).
    """
    factory = _load(_find(name))
    config = dict(extra_config)
    throttle = config.pop("throttle", None)
    if throttle is None:
        return await factory(config, value_bytes=value_bytes)
    if not isinstance(throttle, Mapping):
        raise StorageConfigError('throttle: not an object; write {"bytes_per_second": 20e6, "latency_seconds": 0.2}')
    link = parse_config(throttle, ThrottleConfig, where="throttle")
    return Throttled(await factory(config, value_bytes=value_bytes), link)


def _find(name: str) -> EntryPoint:
    if name in _BUILT_IN:
        return EntryPoint(name, _BUILT_IN[name], ENTRY_POINT_GROUP)
    match tuple(entry_points(group=ENTRY_POINT_GROUP, name=name)):
        case (found,):
            return found
        case ():
            raise UnknownBackendError(f'unknown storage backend "{name}"; known: {", ".join(known_backends())}')
        case several:
            names = ", ".join(_provider(found) for found in several)
            raise UnknownBackendError(f'several distributions provide the storage backend "{name}": {names}')


def _load(found: EntryPoint) -> BackendFactory:
    try:
        return cast("BackendFactory", found.load())
    except Exception as error:
        # A plug-in runs code of its own when it is imported, so that it may fail in any way.
        reason = f"{type(error).__name__}: {error}"
        raise UnknownBackendError(
            f'the storage backend "{found.name}" of {_provider(found)} cannot be loaded: {reason}'
        ) from error


def _provider(found: EntryPoint) -> str:
    return "pagefall" if found.dist is None else f"{found.dist.name} {found.dist.version}"
