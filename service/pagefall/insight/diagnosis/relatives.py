"""Which earlier prompt is most like a prompt: by a sketch of its head that a few changed characters leave alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagefall.insight.diagnosis.replay import Sections

_HEAD: Final = 4096
"""Characters of a prompt that are sketched."""

_SHINGLE: Final = 24
"""Characters that are hashed together."""

_BASE: Final = 0x9E3779B97F4A7C15


class Sketcher:
    """The smallest and the largest hash of a text's shingles (Broder, "On the resemblance and containment of
    documents", 1997): texts that have most of them in common mostly have these two in common.
    """

    def __init__(self) -> None:
        powers = [1]
        for _ in range(_HEAD):
            powers.append(powers[-1] * _BASE % (1 << 64))
        inverse = pow(_BASE, -1, 1 << 64)
        inverses = [1]
        for _ in range(_HEAD):
            inverses.append(inverses[-1] * inverse % (1 << 64))
        self._powers: npt.NDArray[np.uint64] = np.array(powers, dtype=np.uint64)
        self._inverses: npt.NDArray[np.uint64] = np.array(inverses, dtype=np.uint64)

    def sketch(self, text: str) -> tuple[int, int] | None:
        """None for a text that is shorter than a shingle."""
        text = text[:_HEAD]
        num_shingles = len(text) - _SHINGLE + 1
        if num_shingles < 1:
            return None
        characters = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
        sums = np.zeros(len(text) + 1, dtype=np.uint64)
        np.cumsum(characters * self._powers[: len(text)], dtype=np.uint64, out=sums[1:])
        hashes = (sums[_SHINGLE:] - sums[:-_SHINGLE]) * self._inverses[:num_shingles]
        hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return int(hashes.min()), int(hashes.max())


def pairs_alike(prompts: Sequence[Sections], *, max_prompts: int) -> Iterator[tuple[int, int]]:
    """Pairs of an earlier and a later prompt whose heads are alike, at most two for each of the last `max_prompts`."""
    sketcher = Sketcher()
    latest: dict[tuple[str, int], int] = {}
    for number in range(max(0, len(prompts) - max_prompts), len(prompts)):
        sketch = sketcher.sketch(_head(prompts[number]))
        if sketch is None:
            continue
        relatives = set()
        for kind, value in zip(("smallest", "largest"), sketch, strict=True):
            if (earlier := latest.get((kind, value))) is not None:
                relatives.add(earlier)
            latest[kind, value] = number
        for earlier in sorted(relatives):
            yield earlier, number


def _head(prompt: Sections) -> str:
    parts, length = [], 0
    for section in prompt:
        parts.append(section.content[: _HEAD - length])
        length += len(parts[-1])
        if length >= _HEAD:
            break
    return "".join(parts)
