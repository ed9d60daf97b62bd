"""What a file store knows of its values: which there are, who was used last, and what must go to make room.

Pure: it touches no file. The law: `values + reserved <= max_bytes`, where a reservation is room for a value that is
being written. Several processes may share a folder, so what it knows is made true again by a rescan from time to time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pagefall_storage.protocol import Key


class LruValues:
    """The lengths of values by key, least recently used first, and their sum."""

    def __init__(self, values: Iterable[tuple[Key, int]] = ()) -> None:
        self._num_bytes_of: OrderedDict[Key, int] = OrderedDict()
        self.num_bytes = 0
        for key, num_bytes in values:
            self.add(key, num_bytes)

    def __len__(self) -> int:
        return len(self._num_bytes_of)

    def get(self, key: Key) -> int | None:
        return self._num_bytes_of.get(key)

    def add(self, key: Key, num_bytes: int) -> None:
        """Makes this value the one used last, in place of any other under its key."""
        self.num_bytes += num_bytes - self._num_bytes_of.get(key, 0)
        self._num_bytes_of[key] = num_bytes
        self._num_bytes_of.move_to_end(key)

    def remove(self, key: Key) -> None:
        self.num_bytes -= self._num_bytes_of.pop(key, 0)

    def remove_oldest(self) -> tuple[Key, int]:
        """Raises `KeyError` when there is none."""
        key, num_bytes = self._num_bytes_of.popitem(last=False)
        self.num_bytes -= num_bytes
        return key, num_bytes


class Index:
    """The values of one folder under a quota and a watermark.

    `max_bytes` None: no quota. `min_free_bytes` of the file system stay free.
    """

    def __init__(self, values: LruValues, *, max_bytes: int | None, min_free_bytes: int) -> None:
        self._values = values
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._num_reserved_bytes = 0
        self._changed: dict[Key, None] | None = None
        """Keys that changed since `begin_rescan`, in the order of their last change; None outside a rescan."""
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> int | None:
        """The length of the value, None if there is none."""
        return self._values.get(key)

    @property
    def num_bytes(self) -> int:
        return self._values.num_bytes

    def add(self, key: Key, num_bytes: int) -> None:
        """This value is there and was used just now."""
        self._values.add(key, num_bytes)
        self._note_change(key)

    def remove(self, key: Key) -> None:
        """There is no such value (any more)."""
        self._values.remove(key)
        self._note_change(key)

    def has_room(self, num_bytes: int, *, free_bytes: int) -> bool:
        """Whether `num_bytes` fit without evicting, when the file system has `free_bytes`."""
        return self._num_lacking(num_bytes, free_bytes) <= 0

    def reserve(self, num_bytes: int, *, free_bytes: int) -> list[tuple[Key, int]] | None:
        """Room for one value, which the caller gives back with `release` once it is written or is not to be.

        Returns what must be deleted before it is written, with its lengths, and is forgotten here; None, and nothing is
        changed, if there is no room for it even without all other values.
        """
        num_lacking = self._num_lacking(num_bytes, free_bytes)
        if num_lacking > self.num_bytes:
            return None
        self._num_reserved_bytes += num_bytes
        return self._evict(num_lacking)

    def release(self, num_bytes: int) -> None:
        """Gives back a reservation."""
        self._num_reserved_bytes -= num_bytes

    def trim(self) -> list[tuple[Key, int]]:
        """What must be deleted, and is forgotten here, because the folder was found to hold more than its quota."""
        if self._max_bytes is None:
            return []
        return self._evict(self.num_bytes + self._num_reserved_bytes - self._max_bytes)

    def restore(self, key: Key, num_bytes: int) -> None:
        """This value was to be deleted and could not be. It counts as used just now, so that others are tried next."""
        self.add(key, num_bytes)
        self.num_evicted -= 1

    def begin_rescan(self) -> None:
        self._changed = {}

    def end_rescan(self, found: LruValues | None) -> None:
        """Takes over what was `found` since `begin_rescan`, except where this index has changed meanwhile.

        `found` None: the scan failed, and all stays as it is.
        """
        changed, self._changed = self._changed or {}, None
        if found is None:
            return
        for key in changed:
            num_bytes = self._values.get(key)
            if num_bytes is None:
                found.remove(key)
            else:
                found.add(key, num_bytes)
        self._values = found

    def _num_lacking(self, num_bytes: int, free_bytes: int) -> int:
        """How many bytes must be evicted to make room.

        What is reserved may be on the disk in part, and counts twice then: that errs towards more free space.
        """
        lacking = num_bytes + self._num_reserved_bytes + self._min_free_bytes - free_bytes
        if self._max_bytes is not None:
            lacking = max(lacking, num_bytes + self._num_reserved_bytes + self.num_bytes - self._max_bytes)
        return lacking

    def _evict(self, num_bytes: int) -> list[tuple[Key, int]]:
        victims = []
        while num_bytes > 0:
            victim = self._values.remove_oldest()
            self._note_change(victim[0])
            num_bytes -= victim[1]
            victims.append(victim)
        self.num_evicted += len(victims)
        return victims

    def _note_change(self, key: Key) -> None:
        if self._changed is not None:
            self._changed.pop(key, None)
            self._changed[key] = None
