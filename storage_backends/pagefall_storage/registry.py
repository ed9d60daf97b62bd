"""From the name of a backend to an open one.

A plug-in is a distribution with an entry point in the group `pagefall.storage_backends`: its name is the backend's,
its object a `BackendFactory`. For example, in a plug-in's pyproject.toml:

    [project.entry-points."pagefall.storage_backends"]
    mystore = "my_package.store:open_mystore"

What it can do and how it is configured, `about.described` says of a factory; nothing but `pagefall backends` asks.

Several names with commas between them, `file,s3`, are one store: nearest first (see `stacked`).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Protocol, cast

from pagefall_storage.config import parse_config
from pagefall_storage.errors import StorageConfigError, UnknownBackendError
from pagefall_storage.protocol import StorageBackend
from pagefall_storage.stacked import Stacked, Verify
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


def names_in(name: str) -> tuple[str, ...]:
    """The names of a stack's members, nearest first; of a single store its own."""
    return tuple(part.strip() for part in name.split(","))


def member_configs(name: str, extra_config: Mapping[str, object]) -> list[tuple[str, Mapping[str, object]]]:
    """Every backend that `name` names, with what `extra_config` says to it: all of it, or of a stack its own part.

    Raises `StorageConfigError` for a stack with a name twice, and for a part that is not an object or no member's.
    """
    names = names_in(name)
    if len(names) == 1:
        return [(names[0], extra_config)]
    if len(set(names)) < len(names):
        raise StorageConfigError(f'stacked stores "{name}": each may be there once, so that its settings can be told')
    for part, config in extra_config.items():
        if part not in names:
            form = ", ".join(f'"{each}": {{...}}' for each in names)
            raise StorageConfigError(f'stacked stores "{name}": "{part}" is none of them; write {{{form}}}')
        if not isinstance(config, Mapping):
            raise StorageConfigError(f'stacked stores "{name}": the settings of "{part}" are not an object')
    return [(each, cast("Mapping[str, object]", extra_config.get(each, {}))) for each in names]


async def open_backend(
    name: str, extra_config: Mapping[str, object], *, value_bytes: int | None, verify: Verify | None = None
) -> StorageBackend:
    """Opens the backend `name`, ready for use; of several with commas between them a `Stacked`, which uses `verify`.

    The field `throttle` of `extra_config` is not the backend's: it puts any of them behind a slower link (see
    `throttle.ThrottleConfig`). Raises `UnknownBackendError` for an unknown name and a plug-in that cannot be loaded,
    `StorageConfigError` for a configuration that cannot be used, and what else the backend's factory raises.
    """
    members = member_configs(name, extra_config)
    factories = [load(find(each)) for each, _ in members]
    opened: list[StorageBackend] = []
    try:
        for factory, (_, config) in zip(factories, members, strict=True):
            opened.append(await _open(factory, config, value_bytes))
    except BaseException:
        for backend in opened:
            await backend.aclose()
        raise
    return opened[0] if len(opened) == 1 else Stacked(opened, verify=verify)


async def _open(factory: BackendFactory, extra_config: Mapping[str, object], value_bytes: int | None) -> StorageBackend:
    config = dict(extra_config)
    throttle = config.pop("throttle", None)
    if throttle is None:
        return await factory(config, value_bytes=value_bytes)
    if not isinstance(throttle, Mapping):
        raise StorageConfigError('throttle: not an object; write {"bytes_per_second": 20e6, "latency_seconds": 0.2}')
    link = parse_config(throttle, ThrottleConfig, where="throttle")
    return Throttled(await factory(config, value_bytes=value_bytes), link)


def candidates(name: str) -> list[EntryPoint]:
    """Whatever is called `name`: the built-in backend, then plug-ins. Imports nothing."""
    built_in = [EntryPoint(name, _BUILT_IN[name], ENTRY_POINT_GROUP)] if name in _BUILT_IN else []
    return [*built_in, *entry_points(group=ENTRY_POINT_GROUP, name=name)]


def find(name: str) -> EntryPoint:
    """The backend that `name` stands for. A built-in one wins. Raises `UnknownBackendError`. Imports nothing."""
    match candidates(name):
        case []:
            raise UnknownBackendError(f'unknown storage backend "{name}"; known: {", ".join(known_backends())}')
        case [found]:
            return found
        case [EntryPoint(dist=None) as built_in, *_]:
            return built_in
        case several:
            names = ", ".join(_provider(found) for found in several)
            raise UnknownBackendError(f'several distributions provide the storage backend "{name}": {names}')


def load(found: EntryPoint) -> BackendFactory:
    """Imports it. Raises `StorageConfigError` naming the distribution if that fails, however it does."""
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
