"""The pages of a shared store, as far as the workers tell: bounded, since a store is as large as it likes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class StoreNames:
    """A set of names that forgets. It has two generations: what is added or asked for is in the younger one; when that
    is full it becomes the older one, and what was in the older one and not asked for since is forgotten.

    A hint: the store may have deleted a page, or have one that is forgotten here.
    """

    def __init__(self, max_names: int) -> None:
        """Never more than `max_names` (0: none at all), of which the half used last is never forgotten."""
        self._half = max_names // 2
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        """Names in both generations count once."""
        return len(self._young) + len(self._old)

    def __contains__(self, name: int) -> bool:
        return name in self._young or name in self._old

    def add(self, names: Iterable[int]) -> None:
        if not self._half:
            return
        young, old = self._young, self._old
        for name in names:
            old.discard(name)
            young.add(name)
            if len(young) >= self._half:
                self._old = old = young
                self._young = young = set()

    def discard(self, names: Iterable[int]) -> None:
        for name in names:
            self._young.discard(name)
            self._old.discard(name)

    def clear(self) -> None:
        self._young, self._old = set(), set()

    def num_leading(self, names: Sequence[int]) -> int:
        """How many of `names` are there before the first that is not. They count as used."""
        num_pages = 0
        for name in names:
            if name not in self._young:
                if name not in self._old:
                    break
                self.add((name,))
            num_pages += 1
        return num_pages
