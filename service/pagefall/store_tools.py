"""What can be said about a store, and done to it, without a server: by its names, headers and manifests alone.

A value's name is `<namespace>/<page key>` or `<namespace>/namespace` (see `tiers.manifest`), its header repeats both in
full. Whatever else lies in the store is another's: it is counted, and left alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pagefall.cache.namespace import Namespace
from pagefall.tiers.manifest import MANIFEST_NAME, decode_manifest
from pagefall.tiers.values import VALUE_NAME, check_value
from pagefall_storage.protocol import (
    Corrupt,
    Failed,
    Hit,
    Key,
    Miss,
    PutItem,
    StorageBackend,
    Stored,
    StoredValue,
)

_BATCH_VALUES: Final = 64
_BATCH_BYTES: Final = 32 << 20
_COPIES_AT_ONCE: Final = 4
"""Batches: while one is written others are read, and what two stores wait for does not add up."""

Advance = Callable[[int], object]
"""Told how many more values are done."""


class Contents(msgspec.Struct, frozen=True):
    """Every value of a store by its namespace (16 hex digits), and the number of those that are not Pagefall's."""

    by_namespace: dict[str, tuple[StoredValue, ...]]
    num_foreign: int = 0

    @property
    def num_values(self) -> int:
        return sum(map(len, self.by_namespace.values()))


class NamespaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: 16 hex digits. `manifest`: what they stand for, None where the store has no sound manifest.

    Times are seconds since the epoch, None where the store does not know them or there are no pages.
    """

    name: str
    manifest: Namespace | None
    num_pages: int
    num_bytes: int
    oldest_use: float | None
    newest_use: float | None


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """`num_bad` counts damaged values by reason, `num_unread` those of which the store could say nothing, by kind.

    Values that went away meanwhile are in none of them.
    """

    num_sound: int
    num_bad: dict[str, int]
    num_unread: dict[str, int]
    num_deleted: int

    @property
    def is_clean(self) -> bool:
        return not self.num_bad and not self.num_unread


@dataclass(slots=True)
class Copied:
    """What became of the values. Those `num_present` were there already, with the same length.

    `num_bytes` are those of the `num_copied`. `num_bad`, `num_unread` and `num_unwritten` count by reason or kind what
    was not copied; values that went away meanwhile are in none. `stopped`: why the rest was not tried; None: all was.
    """

    num_copied: int = 0
    num_bytes: int = 0
    num_present: int = 0
    num_bad: Counter[str] = field(default_factory=Counter)
    num_unread: Counter[str] = field(default_factory=Counter)
    num_unwritten: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None

    @property
    def is_complete(self) -> bool:
        return self.stopped is None and not (self.num_bad or self.num_unread or self.num_unwritten)


async def list_contents(backend: StorageBackend) -> Contents:
    """Reads names, sizes and times, no values. Raises `StorageError`."""
    by_namespace: dict[str, list[StoredValue]] = {}
    num_foreign = 0
    async for value in backend.scan():
        if (name := VALUE_NAME.fullmatch(value.key)) is None:
            num_foreign += 1
        else:
            by_namespace.setdefault(name[1], []).append(value)
    return Contents({name: tuple(values) for name, values in sorted(by_namespace.items())}, num_foreign)


async def namespace_stats(backend: StorageBackend, contents: Contents) -> list[NamespaceStats]:
    """One for each namespace, in the order of their names. Reads the manifests."""
    stats = []
    for name, values in contents.by_namespace.items():
        pages = [value for value in values if not _is_manifest(value)]
        uses = [value.last_used for value in pages if value.last_used is not None]
        stats.append(
            NamespaceStats(
                name=name,
                manifest=await read_manifest(backend, values),
                num_pages=len(pages),
                num_bytes=sum(value.num_bytes for value in values),
                oldest_use=min(uses, default=None),
                newest_use=max(uses, default=None),
            )
        )
    return stats


async def read_manifest(backend: StorageBackend, values: Iterable[StoredValue]) -> Namespace | None:
    """What the namespace of `values` stands for; None where its manifest is missing, damaged or of another version."""
    for value in filter(_is_manifest, values):
        buffer = memoryview(bytearray(value.num_bytes))
        [outcome] = await backend.get([value.key], [buffer])
        if isinstance(outcome, Hit) and isinstance(manifest := decode_manifest(buffer), Namespace):
            return manifest
    return None


async def verify_values(
    backend: StorageBackend, values: Sequence[StoredValue], *, delete: bool, advance: Advance
) -> Verified:
    """Reads every value and checks it against its header and its name; with `delete`, removes the damaged ones.

    Reading is using. Those used longest ago are read first, so that the order of last uses stays what it was, but for
    neighbours. Raises `StorageError` where the store cannot delete.
    """
    num_sound, num_deleted = 0, 0
    num_bad, num_unread = Counter[str](), Counter[str]()
    for batch in _batches(sorted(values, key=lambda value: value.last_used or 0.0)):
        buffers = [memoryview(bytearray(value.num_bytes)) for value in batch]
        outcomes = await backend.get([value.key for value in batch], buffers)
        bad: list[Key] = []
        for value, buffer, outcome in zip(batch, buffers, outcomes, strict=True):
            match check_value(value.key, buffer) if isinstance(outcome, Hit) else outcome:
                case Hit():
                    num_sound += 1
                case Corrupt(reason):
                    num_bad[reason] += 1
                    bad.append(value.key)
                case Failed(kind):
                    num_unread[kind] += 1
                case Miss():
                    pass
        if delete and bad:
            num_deleted += await backend.delete(bad)
        advance(len(batch))
    return Verified(num_sound=num_sound, num_bad=dict(num_bad), num_unread=dict(num_unread), num_deleted=num_deleted)


async def delete_values(backend: StorageBackend, values: Sequence[StoredValue], *, advance: Advance) -> int:
    """Forgets the values and returns how many there still were. Raises `StorageError`."""
    num_deleted = 0
    for batch in _batches(values):
        num_deleted += await backend.delete([value.key for value in batch])
        advance(len(batch))
    return num_deleted


async def copy_values(
    source: StorageBackend, target: StorageBackend, values: Sequence[StoredValue], *, advance: Advance
) -> Copied:
    """Copies those of the `values` that `target` does not have, each once it was checked against its header and name.

    Those used longest ago go first: of what does not all fit, `target` keeps what was used last. Stops after a batch of
    which nothing could be read, or nothing be written; what was copied until then need not be copied again.

    Raises `StorageError` where `target` cannot be listed.
    """
    present = {value.key: value.num_bytes async for value in target.scan()}
    missing = [value for value in values if present.get(value.key) != value.num_bytes]
    copied = Copied(num_present=len(values) - len(missing))
    advance(copied.num_present)
    batches = _batches(sorted(missing, key=lambda value: value.last_used or 0.0))

    async def copy_batches() -> None:
        for batch in batches:
            await _copy_batch(source, target, batch, copied)
            advance(len(batch))
            if copied.stopped is not None:
                return

    async with asyncio.TaskGroup() as copies:
        for _ in range(_COPIES_AT_ONCE):
            copies.create_task(copy_batches())
    return copied


async def _copy_batch(
    source: StorageBackend, target: StorageBackend, batch: Sequence[StoredValue], copied: Copied
) -> None:
    buffers = [memoryview(bytearray(value.num_bytes)) for value in batch]
    outcomes = await source.get([value.key for value in batch], buffers)
    sound: list[PutItem] = []
    for value, buffer, outcome in zip(batch, buffers, outcomes, strict=True):
        match check_value(value.key, buffer) if isinstance(outcome, Hit) else outcome:
            case Hit():
                sound.append(PutItem(value.key, buffer))
            case Corrupt(reason):
                copied.num_bad[reason] += 1
            case Failed(kind):
                copied.num_unread[kind] += 1
            case Miss():
                pass
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    if len(failures) == len(batch):
        copied.stopped = f"cannot read from {source.description}: {failures[0].reason}"
    written = await target.put(sound) if sound else []
    for item, put in zip(sound, written, strict=True):
        match put:
            case Stored():
                copied.num_copied += 1
                copied.num_bytes += item.value.nbytes
            case Failed(kind):
                copied.num_unwritten[kind] += 1
    refusals = [put for put in written if isinstance(put, Failed)]
    if refusals and len(refusals) == len(sound):
        copied.stopped = f"cannot write to {target.description}: {refusals[0].reason}"


def _is_manifest(value: StoredValue) -> bool:
    return value.key.endswith(f"/{MANIFEST_NAME}")


def _batches(values: Iterable[StoredValue]) -> Iterator[list[StoredValue]]:
    """Each ends with the value that makes it long enough."""
    batch: list[StoredValue] = []
    num_bytes = 0
    for value in values:
        batch.append(value)
        num_bytes += value.num_bytes
        if len(batch) == _BATCH_VALUES or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
