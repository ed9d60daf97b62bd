from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.bench.load.ledger import PrefixLedger
from pagefall.bench.load.presets import PRESETS
from pagefall.bench.load.sessions import sessions
from pagefall.bench.load.shapes import (
    GeneratedSharedPrefix,
    LongDoc,
    MultiTurn,
    RandomPrompts,
    Shape,
    Tiers,
    Trace,
    scaled,
)
from pagefall.bench.load.texts import Texts
from pagefall.bench.load.turns import Session, Turn

from .naive import num_seen

SMALL: tuple[Shape, ...] = (
    GeneratedSharedPrefix(
        groups=3, prompts_per_group=4, system_tokens=20, question_tokens=5, output_tokens=2, length_spread=0.5
    ),
    MultiTurn(users=3, turns=3, system_tokens=7, first_tokens=9, turn_tokens=4, output_tokens=3, length_spread=0.3),
    LongDoc(documents=3, questions=3, document_tokens=30, question_tokens=4, output_tokens=2),
    LongDoc(documents=2, questions=2, document_tokens=30, question_tokens=0, output_tokens=2),
    Tiers(document_tokens=12, evict_tokens=30, output_tokens=2),
    RandomPrompts(input_tokens=10, output_tokens=2, length_spread=1.0),
)
SHAPES = st.sampled_from(SMALL)
SEEDS = st.integers(min_value=0, max_value=2**32)


def turns(made: Iterable[Session]) -> list[Turn]:
    return [turn for session in itertools.islice(made, 20) for turn in session.turns]


@settings(deadline=None)
@given(SHAPES, SEEDS)
def test_one_seed_makes_one_text(shape: Shape, seed: int) -> None:
    first, second = (turns(sessions(shape, random.Random(seed))) for _ in range(2))
    texts = Texts(seed=seed, tokens_per_word=1.3)
    assert [texts.prompt(turn, {}) for turn in first] == [texts.prompt(turn, {}) for turn in second]


@settings(deadline=None)
@given(SHAPES, SEEDS)
def test_the_ceiling_is_what_comparing_every_token_finds(shape: Shape, seed: int) -> None:
    ledger = PrefixLedger()
    prompts = [turn.pieces for turn in turns(sessions(shape, random.Random(seed)))]
    assert [ledger.see(pieces) for pieces in prompts] == num_seen(prompts)


def test_two_seeds_share_no_words_and_no_order() -> None:
    shape = SMALL[0]
    made = [turns(sessions(shape, random.Random(seed))) for seed in (1, 2)]
    assert made[0] != made[1]
    texts = [Texts(seed=seed, tokens_per_word=1.0).prompt(made[0][0], {}) for seed in (1, 2)]
    assert texts[0].split()[:5] != texts[1].split()[:5]


def test_groups_share_their_system_prompt_and_nothing_else() -> None:
    made = turns(sessions(SMALL[0], random.Random(0)))
    assert len(made) == 12
    assert sum(turn.part == "first of its group" for turn in made) == 3
    assert len({turn.pieces[0].key for turn in made}) == 3
    assert len({turn.pieces[1].key for turn in made}) == 12


def test_a_conversation_repeats_all_that_was_said() -> None:
    (first, second, third), *_ = (s.turns for s in sessions(SMALL[1], random.Random(0)))
    assert [piece.role for piece in third.pieces] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert second.pieces[: len(first.pieces)] == first.pieces
    assert third.pieces[: len(second.pieces)] == second.pieces
    assert second.pieces[2].num_tokens == first.output_tokens


def test_real_answers_have_the_place_that_stand_ins_have() -> None:
    shape = MultiTurn(users=1, turns=2, answers="real")
    (session,) = sessions(shape, random.Random(0))
    (answer,) = [piece for piece in session.turns[1].pieces if piece.role == "assistant"]
    assert answer.answer_to == 0
    assert answer.key == session.turns[0].answer_key


def test_documents_are_read_once_each_before_any_is_asked_about_again() -> None:
    made = turns(sessions(SMALL[2], random.Random(0)))
    assert [turn.part for turn in made] == ["first question"] * 3 + ["later question"] * 6


@pytest.mark.parametrize("can_restart", [False, True])
def test_the_tiers_come_in_order_and_fillers_are_not_measured(can_restart: bool) -> None:
    made = turns(sessions(SMALL[4], random.Random(0), can_restart=can_restart))
    parts = ["cold", "same again", "new document", "after eviction", *["after restart"] * can_restart]
    assert [turn.part for turn in made if turn.is_measured] == parts
    assert sum(turn.num_tokens for turn in made if not turn.is_measured) == 30
    cold, same, new, *others = [turn.pieces for turn in made if turn.is_measured]
    assert all(pieces == cold for pieces in (same, *others))
    assert new != cold
    assert [turn.preparation for turn in made if turn.is_measured][3:] == ["settle", *["restart"] * can_restart]


def test_a_trace_is_not_made() -> None:
    with pytest.raises(ValueError, match="read"):
        sessions(Trace(trace="x"), random.Random(0))


def test_scaling_keeps_turns_and_the_share_that_repeats() -> None:
    for preset in PRESETS.values():
        small = scaled(preset.shape, 0.1)
        assert type(small) is type(preset.shape)
        ceilings = []
        for shape in (preset.shape, small):
            ledger = PrefixLedger()
            made = list(itertools.islice(sessions(shape, random.Random(0)), 2_000))
            # In rounds, as all users talk at the same time.
            rounds = itertools.zip_longest(*(session.turns for session in made))
            prompts = [turn.pieces for turn in itertools.chain.from_iterable(rounds) if turn is not None]
            seen = sum(ledger.see(pieces) for pieces in prompts)
            ceilings.append(seen / sum(piece.num_tokens for pieces in prompts for piece in pieces))
        assert ceilings[1] == pytest.approx(ceilings[0], abs=0.06), preset.source


def test_what_was_left_out_stays_out_at_every_scale() -> None:
    shape = scaled(MultiTurn(users=10, system_tokens=0, first_tokens=100), 0.001)
    assert shape == MultiTurn(users=1, system_tokens=0, first_tokens=1, turn_tokens=1, output_tokens=1)
