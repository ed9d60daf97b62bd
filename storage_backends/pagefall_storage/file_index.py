"""What a file store knows of its values: which there are, who was used last, and what must go to make room.

Pure: it touches no file. The law: `values + reserved <= max_bytes`, where a reservation is room for a value that is
being written. Several processes may share a folder, so what it knows is made true again by a rescan from time to time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pagefall_storage.protocol import Key, StoredValue


class LruValues:
    """Values by key, least recently used first, and the sum of their lengths."""

    def __init__(self, values: Iterable[StoredValue] = ()) -> None:
        self._values: OrderedDict[Key, StoredValue] = OrderedDict()
        self.num_bytes = 0
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def add(self, value: StoredValue) -> None:
        """Makes `value` the one used last, in place of any other under its key."""
        self.remove(value.key)
        self._values[value.key] = value
        self.num_bytes += value.num_bytes

    def remove(self, key: Key) -> StoredValue | None:
        value = self._values.pop(key, None)
        if value is not None:
            self.num_bytes -= value.num_bytes
        return value

    def remove_oldest(self) -> StoredValue:
        """Raises `KeyError` when there is none."""
        _, value = self._values.popitem(last=False)
        self.num_bytes -= value.num_bytes
        return value


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

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    @property
    def num_bytes(self) -> int:
        return self._values.num_bytes

    def add(self, value: StoredValue) -> None:
        """`value` is there and was used just now."""
        self._values.add(value)
        self._note_change(value.key)

    def remove(self, key: Key) -> None:
        """There is no such value (any more)."""
        self._values.remove(key)
        self._note_change(key)

    def has_room(self, num_bytes: int, *, free_bytes: int) -> bool:
        """Whether `num_bytes` fit without evicting, when the file system has `free_bytes`."""
        return self._num_lacking(num_bytes, free_bytes) <= 0

    def reserve(self, num_bytes: int, *, free_bytes: int) -> list[StoredValue] | None:
        """Room for one value, which the caller gives back with `release` once it is written or is not to be.

        Returns what must be deleted before it is written, and is forgotten here; None, and nothing is changed, if there
        is no room for it even without all other values.
        """
        num_lacking = self._num_lacking(num_bytes, free_bytes)
        if num_lacking > self.num_bytes:
            return None
        self._num_reserved_bytes += num_bytes
        return self._evict(num_lacking)

    def release(self, num_bytes: int) -> None:
        """Gives back a reservation."""
        self._num_reserved_bytes -= num_bytes

    def trim(self) -> list[StoredValue]:
        """What must be deleted, and is forgotten here, because the folder was found to hold more than its quota."""
        if self._max_bytes is None:
            return []
        return self._evict(self.num_bytes + self._num_reserved_bytes - self._max_bytes)

    def restore(self, value: StoredValue) -> None:
        """`value` was to be deleted and could not be. It counts as used just now, so that others are tried next."""
        self.add(value)
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
            value = self._values.remove(key)
            if value is None:
                found.remove(key)
            else:
                found.add(value)
        self._values = found

    def _num_lacking(self, num_bytes: int, free_bytes: int) -> int:
        """How many bytes must be evicted to make room.

        What is reserved may be on the disk in part, and counts twice then: that errs towards more free space.
        """
        lacking = num_bytes + self._num_reserved_bytes + self._min_free_bytes - free_bytes
        if self._max_bytes is not None:
            lacking = max(lacking, num_bytes + self._num_reserved_bytes + self.num_bytes - self._max_bytes)
        return lacking

    def _evict(self, num_bytes: int) -> list[StoredValue]:
        victims = []
        while num_bytes > 0:
            victim = self._values.remove_oldest()
            self._note_change(victim.key)
            num_bytes -= victim.num_bytes
            victims.append(victim)
        self.num_evicted += len(victims)
        return victims

    def _note_change(self, key: Key) -> None:
        if self._changed is not None:
            self._changed.pop(key, None)
            self._changed[key] = None
