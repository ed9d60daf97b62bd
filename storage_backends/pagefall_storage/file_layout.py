"""Where a file store keeps what: `<root>/<namespace>/<first two characters of the page key>/<page key>`.

A namespace of several parts is one folder, its parts joined by dots, and `_` stands for none: keys have neither, so no
two keys share a file and none needs a folder where another has a file. `<root>/.temp` is for values being written.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pagefall_storage.file_index import LruValues
from pagefall_storage.keys import is_key
from pagefall_storage.protocol import Key, StoredValue

TEMP_FOLDER: Final = ".temp"
_NO_NAMESPACE: Final = "_"
_NUM_SHARD_CHARACTERS: Final = 2


class Layout:
    """The names below one folder. Files that no key has are not ours: they are neither counted nor touched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = f"{root}{os.sep}"

    def path(self, key: Key) -> str:
        """Where the value of `key` is, if there is one."""
        namespace, _, name = key.rpartition("/")
        folder = namespace.replace("/", ".") or _NO_NAMESPACE
        return f"{self._prefix}{folder}/{name[:_NUM_SHARD_CHARACTERS]}/{name}"

    def shards(self) -> list[Path]:
        """Every folder that may hold values. Raises `OSError`."""
        namespaces = [folder for folder in _folders(self.root) if not folder.name.startswith(".")]
        return [shard for namespace in namespaces for shard in _folders(namespace)]

    def values_in(self, shard: Path) -> list[StoredValue]:
        """The values of one shard, least recently used first; none if it is gone. Raises `OSError`.

        Reads names, lengths and times alone. The time of a file's last change is when its value was used last.
        """
        folder = shard.parent.name
        namespace = "" if folder == _NO_NAMESPACE else folder.replace(".", "/") + "/"
        values = []
        try:
            with os.scandir(shard) as entries:
                for entry in entries:
                    key = Key(namespace + entry.name)
                    if entry.name[:_NUM_SHARD_CHARACTERS] == shard.name and is_key(key):
                        status = _status(entry)
                        if status is not None and stat.S_ISREG(status.st_mode):
                            values.append(StoredValue(key, status.st_size, status.st_mtime))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(values, key=_last_used)

    def scan(self, *, is_stopped: Callable[[], bool] = lambda: False) -> LruValues | None:
        """All values, least recently used first; None if it was stopped. Raises `OSError`.

        Merging sorted shards, instead of sorting all at once, lets other threads run in between.
        """
        shards = []
        for shard in self.shards():
            if is_stopped():
                return None
            shards.append(self.values_in(shard))
        return LruValues((value.key, value.num_bytes) for value in heapq.merge(*shards, key=_last_used))


def _folders(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            return [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


def _last_used(value: StoredValue) -> float:
    return value.last_used or 0.0
