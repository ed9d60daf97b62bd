"""One prefix under several salts, or on several workers: what each of them computes for itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from pagefall.insight.diagnosis.ceiling import Keys


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix that most of them have: `num_owners` of `num_all_owners`, its length in pages, its prompts."""

    num_owners: int
    num_all_owners: int
    num_pages: int
    num_prompts: int
    prompt: int
    """The number of one of these."""


def widest_spread(keys: Sequence[Keys], owners: Sequence[Hashable]) -> Spread | None:
    """Of the prefixes that belong to several owners, the one of which most pages are there once too often.

    `keys` know nothing of owners. None if each prefix has one owner.
    """
    if not sum(map(len, keys)):
        return None
    names: dict[Hashable, int] = {}
    numbers = np.array([names.setdefault(owner, len(names)) for owner in owners], dtype=np.int64)
    lengths = [len(each) for each in keys]
    unique, first, pages = np.unique(np.concatenate(keys), return_index=True, return_inverse=True)
    depths = np.concatenate([np.arange(1, length + 1) for length in lengths])
    page_owners = np.repeat(numbers, lengths)
    pairs = np.unique(pages * len(names) + page_owners)
    num_owners = np.bincount(pairs // len(names), minlength=len(unique))
    if num_owners.max() < 2:
        return None
    # The head that all share is short, the longest one is shared by two: copies times length is between them.
    weight = (num_owners - 1) * depths[first]
    widest = int(weight.argmax())
    prompt = int(np.repeat(np.arange(len(keys)), lengths)[first[widest]])
    return Spread(
        num_owners=int(num_owners[widest]),
        num_all_owners=len(names),
        num_pages=int(depths[first[widest]]),
        num_prompts=int((pages == widest).sum()),
        prompt=prompt,
    )
