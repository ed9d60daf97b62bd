"""The geometry of a step: every position lands in its own slot, whatever the pages' order."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefall.messages import RequestId, SamplingParams, SequenceStep
from pagefall.model.step_layout import MIN_ROWS, StepLayout, slot_runs

CPU = torch.device("cpu")


def sequence(num_tokens: int, start: int, page_ids: list[int], *, samples: bool = True) -> SequenceStep:
    return SequenceStep(
        request_id=RequestId("r"),
        token_ids=np.arange(1, num_tokens + 1, dtype=np.uint32),
        start=start,
        page_ids=np.array(page_ids, dtype=np.int32),
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams() if samples else None,
    )


def slots_of(page_ids: list[int], page_size: int, num_tokens: int) -> list[int]:
    return [page_ids[position // page_size] * page_size + position % page_size for position in range(num_tokens)]


def test_contiguous_pages_are_one_run() -> None:
    assert slot_runs(np.array([5, 6, 7, 9], dtype=np.int32), 16, 40) == ((80, 40),)


@given(
    page_size=st.sampled_from([1, 4, 16]),
    pages=st.lists(st.integers(0, 60), min_size=1, max_size=40, unique=True),
    data=st.data(),
)
def test_runs_name_the_slot_of_every_position_in_order(page_size: int, pages: list[int], data: st.DataObject) -> None:
    num_tokens = data.draw(st.integers(1, len(pages) * page_size))
    runs = slot_runs(np.array(pages, dtype=np.int32), page_size, num_tokens)
    named = [slot for first, length in runs for slot in range(first, first + length)]
    assert named == slots_of(pages, page_size, num_tokens)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 49)), min_size=1, max_size=12),
    seed=st.integers(0, 1000),
)
def test_a_write_puts_each_row_into_its_own_slot_and_touches_no_other(shapes: list[tuple[int, int]], seed: int) -> None:
    page_size, num_pages = 4, 300
    order = np.random.default_rng(seed).permutation(num_pages).tolist()
    sequences: list[SequenceStep] = []
    expected: dict[int, int] = {}
    row = 0
    for num_tokens, start in shapes:
        start = min(start, num_tokens - 1)
        pages = [order.pop() for _ in range(-(-num_tokens // page_size))]
        sequences.append(sequence(num_tokens, start, pages))
        for slot in slots_of(pages, page_size, num_tokens)[start:]:
            expected[slot] = row
            row += 1
    layout = StepLayout(sequences, page_size=page_size, device=CPU)
    rows = max(row, MIN_ROWS)
    keys = torch.full((2, num_pages * page_size, 3), -1.0)
    values = torch.full((2, num_pages * page_size, 5), -1.0)
    numbered = torch.arange(rows, dtype=torch.float32)[:, None, None]
    layout.write(keys, values, numbered.expand(rows, 2, 3), numbered.expand(rows, 2, 5))
    for slot in range(num_pages * page_size):
        assert (keys[:, slot] == expected.get(slot, -1)).all()
        assert (values[:, slot] == expected.get(slot, -1)).all()


def test_a_token_of_the_answer_is_told_from_the_last_token_of_a_prompt() -> None:
    step = SequenceStep(
        request_id=RequestId("r"),
        token_ids=np.arange(20, dtype=np.uint32),
        start=19,
        page_ids=np.arange(2, dtype=np.int32),
        num_prompt_tokens=19,
        sampling=SamplingParams(),
    )
    layout = StepLayout([step, sequence(20, 19, [4, 5])], page_size=16, device=CPU)
    assert [placed.is_decode for placed in layout.sequences] == [True, False]


def test_only_sequences_that_sample_have_logit_rows_and_rows_are_padded() -> None:
    layout = StepLayout([sequence(3, 0, [0], samples=False), sequence(2, 1, [1])], page_size=16, device=CPU)
    assert layout.num_rows == MIN_ROWS
    assert layout.num_logits == 1
    assert layout.logit_rows.tolist() == [3] + [0] * (MIN_ROWS - 1)
    assert layout.token_ids.tolist() == [1, 2, 3, 2]
    assert layout.position_ids.tolist() == [0, 1, 2, 1]
    alone = StepLayout([sequence(2, 1, [1])], page_size=16, device=CPU)
    assert alone.token_ids.tolist() == [2, 0, 0, 0]
    assert alone.num_rows == 1
