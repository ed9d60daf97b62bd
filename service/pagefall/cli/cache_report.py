"""What `pagefall cache` says, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from pagefall.bench.report import align
from pagefall.cache.namespace import Namespace
from pagefall.store_tools import Copied, NamespaceStats, Verified


def stats_table(store: str, stats: Sequence[NamespaceStats], num_foreign: int) -> str:
    """One line for each namespace under a line about the store; times are local."""
    rows = [["namespace", "model", "architecture", "dtype", "page size", "pages", "size", "oldest use", "newest use"]]
    for each in stats:
        manifest = each.manifest
        rows.append(
            [
                each.name,
                *(["-"] * 4 if manifest is None else _columns(manifest)),
                f"{each.num_pages:,}",
                size(each.num_bytes),
                _time(each.oldest_use),
                _time(each.newest_use),
            ]
        )
    lines = [store, *(align(rows) if stats else ["no pages"])]
    if num_foreign:
        lines.append(f"{num_foreign:,} values are not Pagefall's")
    return "\n".join(lines) + "\n"


def stats_json(store: str, stats: Sequence[NamespaceStats], num_foreign: int) -> str:
    """Digests in hex, times in seconds since the epoch."""
    namespaces = [msgspec.structs.asdict(each) | {"manifest": _as_dict(each.manifest)} for each in stats]
    document = {"store": store, "namespaces": namespaces, "num_foreign": num_foreign}
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def verified(it: Verified) -> str:
    """The counts, the reasons in falling order."""
    lines = [f"sound     {it.num_sound:,}"]
    lines += [f"damaged   {count:,}  {reason}" for reason, count in _by_count(it.num_bad)]
    lines += [f"not read  {count:,}  {kind}" for kind, count in _by_count(it.num_unread)]
    if it.num_deleted:
        lines.append(f"deleted   {it.num_deleted:,}")
    return "\n".join(lines) + "\n"


def copied(it: Copied) -> str:
    """The counts, and why the copy is not whole."""
    lines = [f"copied       {it.num_copied:,}  {size(it.num_bytes)}"]
    if it.num_present:
        lines.append(f"there before {it.num_present:,}")
    lines += [f"damaged      {count:,}  {reason}" for reason, count in _by_count(it.num_bad)]
    lines += [f"not read     {count:,}  {kind}" for kind, count in _by_count(it.num_unread)]
    lines += [f"not written  {count:,}  {kind}" for kind, count in _by_count(it.num_unwritten)]
    if it.stopped is not None:
        lines.append(f"stopped: {it.stopped}; the same command goes on from here")
    return "\n".join(lines) + "\n"


def differences(one: Namespace, other: Namespace) -> str:
    """A line for each field that differs, or one that says that none does."""
    fields = one.differences(other)
    if not fields:
        return "nothing differs: servers with these settings share pages\n"
    return "\n".join(align([[name, _text(getattr(one, name)), _text(getattr(other, name))] for name in fields])) + "\n"


def size(num_bytes: int) -> str:
    """In the largest unit of which there is one."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{num_bytes} bytes"


def _columns(manifest: Namespace) -> list[str]:
    dtypes = dict.fromkeys([manifest.compute_dtype, manifest.kv_dtype])
    return [manifest.model_digest.hex()[:12], manifest.architecture, "/".join(dtypes), str(manifest.page_size)]


def _as_dict(manifest: Namespace | None) -> dict[str, Any] | None:
    if manifest is None:
        return None
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in msgspec.structs.asdict(manifest).items()
    }


def _text(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])
