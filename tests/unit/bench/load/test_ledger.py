from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.bench.load.ledger import PrefixLedger
from pagefall.bench.load.turns import Piece

from .naive import num_seen

PIECES = st.sampled_from([Piece(key=f"p{size}", num_tokens=size) for size in (1, 2, 5)])


@settings(deadline=None)
@given(st.lists(st.lists(PIECES, max_size=5), max_size=8))
def test_the_longest_known_head_is_what_comparing_every_token_finds(prompts: list[list[Piece]]) -> None:
    ledger = PrefixLedger()
    assert [ledger.see(pieces) for pieces in prompts] == num_seen(prompts)
