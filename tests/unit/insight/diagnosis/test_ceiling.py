from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.insight.diagnosis.ceiling import PrefixHasher, num_usable_tokens, prompt_keys, seed_of

prompts = st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=12)


@settings(deadline=None)
@given(prompts, st.integers(1, 4), st.data())
def test_the_ceiling_is_what_a_set_of_all_prefixes_gives(
    sequences: list[list[int]], page_size: int, data: st.DataObject
) -> None:
    salts = data.draw(st.lists(st.sampled_from(["", "a"]), min_size=len(sequences), max_size=len(sequences)))
    pairs = ((np.array(each, dtype=np.uint32), seed_of(salt)) for each, salt in zip(sequences, salts, strict=True))
    keys = prompt_keys(PrefixHasher(), pairs, page_size)
    usable = num_usable_tokens(keys, np.array([len(each) for each in sequences]), page_size)

    seen: set[tuple[str, tuple[int, ...]]] = set()
    expected = []
    for sequence, salt in zip(sequences, salts, strict=True):
        ends = range(page_size, len(sequence) + 1, page_size)
        expected.append(
            max((end for end in ends if (salt, tuple(sequence[:end])) in seen and end < len(sequence)), default=0)
        )
        seen |= {(salt, tuple(sequence[:end])) for end in ends}
    assert usable.tolist() == expected


def test_zeros_at_the_end_count() -> None:
    hasher = PrefixHasher()
    short, long = (hasher.keys(np.array(ids, dtype=np.uint32), 1) for ids in ([7], [7, 0, 0]))
    assert short[0] == long[0]
    assert len({*long.tolist()}) == 3


def test_keys_do_not_change_when_longer_prompts_come() -> None:
    hasher = PrefixHasher()
    ids = np.arange(40, dtype=np.uint32)
    before = hasher.keys(ids, 4)
    hasher.keys(np.arange(5_000, dtype=np.uint32), 4)
    assert hasher.keys(ids, 4).tolist() == before.tolist()


def test_no_salt_is_a_salt_of_its_own() -> None:
    assert len({seed_of(""), seed_of("a"), seed_of("b"), seed_of("ab")}) == 4
    assert seed_of("") == 0
