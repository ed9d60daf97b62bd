"""`pagefall cache stats|verify|clear|copy|diff`: a store looked at, checked, cleared and moved without a server."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from tqdm import tqdm

from pagefall.cache.namespace import Namespace
from pagefall.cli import cache_report
from pagefall.cli.cache_flags import (
    CLEAR_FLAGS,
    COPY_FLAGS,
    DIFF_FLAGS,
    STATS_FLAGS,
    VERIFY_FLAGS,
    ClearConfig,
    CopyConfig,
    StatsConfig,
    StoreConfig,
    VerifyConfig,
)
from pagefall.cli.extra_config import check_backend, read_extra_config
from pagefall.cli.flags import FlagTable, nearest
from pagefall.cli.parser import Given, build_config, parse_arguments
from pagefall.errors import ConfigError
from pagefall.store_tools import (
    Advance,
    Contents,
    copy_values,
    delete_values,
    list_contents,
    namespace_stats,
    read_manifest,
    verify_values,
)
from pagefall.tiers.values import check_value
from pagefall_storage.errors import StorageConfigError, StorageError
from pagefall_storage.protocol import StorageBackend, StoredValue
from pagefall_storage.registry import known_backends, member_configs, open_backend
from pagefall_storage.stacked import Stacked

C = TypeVar("C", bound=msgspec.Struct)

_COMMANDS: Final = ("stats", "verify", "clear", "copy", "diff")

_STORE: Final = re.compile(r"([A-Za-z0-9_.,-]+):(\{.*|@.+|)", re.DOTALL)
"""`BACKEND:SETTINGS`; the settings, as `--extra-config` takes them, may be left out."""


def cache(argv: Sequence[str]) -> int:
    """Run the command named `argv[0]` with what follows; returns its exit status.

    Raises `ConfigError` for flags that cannot be used and for a store that cannot be opened or does not answer.
    """
    name, rest = argv[0], argv[1:]
    match name:
        case "stats":
            return asyncio.run(_stats(_parse(STATS_FLAGS, StatsConfig, rest)))
        case "verify":
            return asyncio.run(_verify(_parse(VERIFY_FLAGS, VerifyConfig, rest)))
        case "clear":
            return asyncio.run(_clear(_parse(CLEAR_FLAGS, ClearConfig, rest)))
        case "copy":
            sides, flags = _sides(rest)
            namespace = _parse(COPY_FLAGS, CopyConfig, flags).namespace
            if len(sides) != 2:
                raise ConfigError("cache copy: needs two stores, FROM and TO, before or after its flags; see --help")
            return asyncio.run(_copy(_store(sides[0]), _store(sides[1]), namespace))
        case "diff":
            sides, flags = _sides(rest)
            config = _parse(DIFF_FLAGS, StoreConfig, flags)
            if len(sides) != 2:
                raise ConfigError("cache diff: needs two namespaces or folders, before or after its flags; see --help")
            return asyncio.run(_diff([_side(side, config) for side in sides]))
        case _:
            alike = nearest(name, _COMMANDS)
            raise ConfigError(f"cache {name}: unknown; " + (f"did you mean {alike}?" if alike else "see --help"))


async def _stats(config: StatsConfig) -> int:
    async with _open(config) as backend:
        contents = await list_contents(backend)
        stats = await namespace_stats(backend, contents)
        report = cache_report.stats_json if config.json else cache_report.stats_table
        sys.stdout.write(report(backend.description, stats, contents.num_foreign))
    return 0


async def _verify(config: VerifyConfig) -> int:
    """Of stacked stores each by itself: what is damaged in one may be sound in another."""
    is_clean = True
    async with _open(config) as backend:
        everything = await list_contents(backend)
        names = everything.by_namespace if config.namespace is None else [_resolve(everything, config.namespace)]
        for member in backend.members if isinstance(backend, Stacked) else (backend,):
            contents = everything if member is backend else await list_contents(member)
            values = [value for name in names for value in contents.by_namespace.get(name, ())]
            with _progress("verifying", len(values)) as advance:
                verified = await verify_values(member, values, delete=config.delete, advance=advance)
            if member is not backend:
                sys.stdout.write(f"{member.description}\n")
            sys.stdout.write(cache_report.verified(verified))
            is_clean &= verified.is_clean
    return 0 if is_clean else 1


async def _clear(config: ClearConfig) -> int:
    if config.all == (config.namespace is not None):
        raise ConfigError("cache clear: pass either --namespace PREFIX or --all")
    async with _open(config) as backend:
        contents = await list_contents(backend)
        values = _selected(contents, config.namespace)
        with _progress("clearing", len(values)) as advance:
            num_deleted = await delete_values(backend, values, advance=advance)
    num_bytes = sum(value.num_bytes for value in values)
    what = "all namespaces" if config.namespace is None else f"namespace {_resolve(contents, config.namespace)}"
    sys.stdout.write(f"cleared {what}: {num_deleted:,} values, {cache_report.size(num_bytes)}\n")
    return 0


async def _copy(source: StoreConfig, target: StoreConfig, namespace: str | None) -> int:
    async with _open(source, "FROM") as here:
        values = _selected(await list_contents(here), namespace)
        async with _open(target, "TO", makes_folder=True) as there:
            with _progress("copying", len(values)) as advance:
                copied = await copy_values(here, there, values, advance=advance)
    sys.stdout.write(cache_report.copied(copied))
    return 0 if copied.is_complete else 1


def _store(text: str) -> StoreConfig:
    """What `FROM` and `TO` name. Raises `ConfigError` for the bare name of a backend, which may be a folder's too."""
    if text in known_backends():
        raise ConfigError(f"cache copy: write {text}:{{...}} with its settings, or ./{text} if a folder is meant")
    if match := _STORE.fullmatch(text):
        return StoreConfig(storage_backend=match[1], extra_config=match[2] or None)
    return StoreConfig(extra_config=msgspec.json.encode({"path": text}).decode())


class _Side(msgspec.Struct, frozen=True):
    """One namespace to compare: the one in `store` that begins with `prefix`. `only`: there must be no other in it."""

    store: StoreConfig
    prefix: str
    only: bool = False


def _sides(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The two things to compare, first or last, and the flags; without two at either end all are flags."""
    for sides, flags in ((argv[:2], argv[2:]), (argv[-2:], argv[:-2])):
        if len(sides) == 2 and not any(side.startswith("-") for side in sides):
            return sides, flags
    return (), argv


def _side(text: str, config: StoreConfig) -> _Side:
    """A folder means the file store there; anything else begins one of the namespaces of `config`'s store."""
    if not Path(text).is_dir():
        return _Side(config, text)
    return _Side(StoreConfig(extra_config=msgspec.json.encode({"path": text}).decode()), "", only=True)


async def _diff(sides: Sequence[_Side]) -> int:
    one, other = [await _manifest(side) for side in sides]
    sys.stdout.write(cache_report.differences(one, other))
    return 1 if one.differences(other) else 0


async def _manifest(side: _Side) -> Namespace:
    async with _open(side.store) as backend:
        contents = await list_contents(backend)
        if side.only and len(contents.by_namespace) != 1:
            raise ConfigError(f"{backend.description}: a folder to compare needs one namespace; has {_list(contents)}")
        name = _resolve(contents, side.prefix)
        manifest = await read_manifest(backend, contents.by_namespace[name])
    if manifest is None:
        raise ConfigError(f"{name} has no sound manifest; a server writes one when it starts on the store")
    return manifest


def _selected(contents: Contents, prefix: str | None) -> list[StoredValue]:
    if prefix is None:
        return [value for values in contents.by_namespace.values() for value in values]
    return list(contents.by_namespace[_resolve(contents, prefix)])


def _resolve(contents: Contents, prefix: str) -> str:
    """The one namespace that begins with `prefix`. Raises `ConfigError` where there is none, or are several."""
    match [name for name in contents.by_namespace if name.startswith(prefix)]:
        case [name]:
            return name
        case []:
            raise ConfigError(f"no namespace begins with {prefix!r}: the store has {_list(contents)}")
        case several:
            raise ConfigError(
                f"{len(several)} namespaces begin with {prefix!r}: {', '.join(several)}; give more digits"
            )


def _list(contents: Contents) -> str:
    return ", ".join(contents.by_namespace) or "none"


@asynccontextmanager
async def _open(
    config: StoreConfig, source: str | None = None, *, makes_folder: bool = False
) -> AsyncIterator[StorageBackend]:
    """`source` is how errors call what the user gave; None: two flags. `makes_folder`: as a server does.

    Raises `ConfigError` for a store that cannot be opened, and for one that cannot answer what the body asks.
    """
    given = config.extra_config
    settings = {} if given is None else read_extra_config(Given(given, source or "--extra-config"))
    check_backend(config.storage_backend, source or "--storage-backend", known_backends())
    try:
        for name, its_settings in member_configs(config.storage_backend, settings):
            if name == "file" and not makes_folder:
                _refuse_missing_folder(its_settings.get("path"))
        backend = await open_backend(config.storage_backend, settings, value_bytes=None, verify=check_value)
    except (StorageConfigError, StorageError) as error:
        raise ConfigError(str(error)) from error
    try:
        yield backend
    except StorageError as error:
        raise ConfigError(f"{backend.description}: {error}") from error
    finally:
        await backend.aclose()


def _refuse_missing_folder(path: object) -> None:
    """A server makes the folder of its store. Here one that is missing is a misspelt one."""
    if isinstance(path, str) and not Path(path).is_dir():
        raise ConfigError(f"there is no folder {path}")


@contextmanager
def _progress(verb: str, num_values: int) -> Iterator[Advance]:
    """A bar where standard error is a terminal; it leaves no trace."""
    with tqdm(total=num_values, desc=verb, unit=" values", disable=None, leave=False) as bar:
        yield bar.update


def _parse(table: FlagTable, config: type[C], argv: Sequence[str]) -> C:
    parsed: C = build_config(table, config, parse_arguments(table, argv, os.environ))
    return parsed
