"""The flags of `pagefall cache`'s commands, and what they become."""

from __future__ import annotations

import msgspec

from pagefall.cli.flags import Flag, FlagTable, Group


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which store: as `--hicache-storage-backend` and its extra config say it to the server."""

    storage_backend: str = "file"
    extra_config: str | None = None


class StatsConfig(StoreConfig, frozen=True, kw_only=True):
    json: bool = False


class VerifyConfig(StoreConfig, frozen=True, kw_only=True):
    """`namespace` None: all of them."""

    namespace: str | None = None
    delete: bool = False


class ClearConfig(StoreConfig, frozen=True, kw_only=True):
    """Exactly one of `namespace` and `all` is given."""

    namespace: str | None = None
    all: bool = False


class CopyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`namespace` None: all of them."""

    namespace: str | None = None


_STORE = (
    Flag(
        "storage-backend",
        "the store: file, redis, s3 or an installed plug-in, or several as one: file,s3",
        "NAME[,NAME]",
    ),
    Flag(
        "extra-config",
        'the store\'s settings, such as {"path": "/some/folder"}, of several {"file": {...}, "s3": {...}}; absent: the '
        "folder of PAGEFALL_STORAGE_DIR or "
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
        "JSON|@FILE",
    ),
)
_NAMESPACE = Flag("namespace", "only the namespace that begins so", "PREFIX")


def _table(command: str, summary: str, config: type[StoreConfig], *flags: Flag) -> FlagTable:
    return FlagTable(
        program=f"pagefall cache {command}", summary=summary, groups=(Group("Flags", "", config, (*_STORE, *flags)),)
    )


STATS_FLAGS = _table(
    "stats",
    "What a store holds, one line for each namespace.",
    StatsConfig,
    Flag("json", "the same as JSON"),
)
VERIFY_FLAGS = _table(
    "verify",
    "Read every value of a store and check it. Exit status 1 where one is damaged or cannot be read.",
    VerifyConfig,
    _NAMESPACE,
    Flag("delete", "remove the damaged values"),
)
CLEAR_FLAGS = _table(
    "clear",
    "Remove a namespace from a store, or all of them. Does not ask.",
    ClearConfig,
    _NAMESPACE,
    Flag("all", "every namespace"),
)
DIFF_FLAGS = _table(
    "diff A B",
    "Name what differs between two namespaces: each is the beginning of one in the store, or the folder of a file "
    "store that has only one. Exit status 1 where anything does.",
    StoreConfig,
)
COPY_FLAGS = FlagTable(
    program="pagefall cache copy FROM TO",
    summary="Copy every sound value of one store to another that does not have it yet; run again, it goes on where it "
    "ended. FROM and TO are folders of file stores, or BACKEND:SETTINGS, such as redis:{...} or s3:@FILE. Exit status "
    "1 where something was not copied.",
    groups=(Group("Flags", "", CopyConfig, (_NAMESPACE,)),),
)
