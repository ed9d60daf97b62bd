"""Which keys to ask for to learn how many leading ones are there, in few rounds of requests made at once.

Pages of a prefix are written front to back, so that mostly all before one that is there are there too. Asking for a few
spread over the whole range, then over the gap that is left, takes two rounds for 256 keys and 16 at once; and one where
all are there or none is.
"""

from __future__ import annotations

from collections.abc import Sequence


class LeadingSearch:
    """Ask for `probes()`, tell `learn`, until `probes()` is empty: then `num_leading` is the answer.

    Exact for up to `num_probes` keys (2 at least). Of more it may not see a key that is missing between two others.
    """

    def __init__(self, num_keys: int, num_probes: int) -> None:
        self.num_leading = 0
        self._end = num_keys
        self._num_probes = max(2, num_probes)

    def probes(self) -> list[int]:
        """Indices, ascending, the first and the last in doubt among them."""
        num_in_doubt = self._end - self.num_leading
        if num_in_doubt <= self._num_probes:
            return list(range(self.num_leading, self._end))
        gaps = self._num_probes - 1
        return [self.num_leading + i * (num_in_doubt - 1) // gaps for i in range(self._num_probes)]

    def learn(self, probes: Sequence[int], are_there: Sequence[bool]) -> None:
        """What became of the last `probes()`."""
        for index, is_there in zip(probes, are_there, strict=True):
            if not is_there:
                self._end = index
                return
            self.num_leading = index + 1
