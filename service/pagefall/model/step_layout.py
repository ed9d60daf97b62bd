"""Where a step's tokens sit: rows of the flattened batch, and runs of slots in the pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from pagefall.messages import PageIds, SequenceStep

MIN_ROWS = 4
"""Rows every matrix product of a step has at least. Below it, oneDNN takes a matrix-vector path that sums in another
order and, measured on Zen 4, is also 10 to 20% slower than four rows.
"""


class SlotRun(NamedTuple):
    """Slots `[first_slot, first_slot + length)` hold consecutive positions of one sequence."""

    first_slot: int
    length: int


class SequenceLayout(NamedTuple):
    """One sequence: rows `[first_row, first_row + num_rows)` hold positions `[start, start + num_rows)`.

    `runs` hold positions `[0, start + num_rows)`. `is_decode`: the one row is a token of the answer. (The one row that
    a warm prompt may have left is not: it is computed the way the whole prompt would be.)
    """

    first_row: int
    num_rows: int
    start: int
    is_decode: bool
    runs: tuple[SlotRun, ...]


class StepLayout:
    """One step's geometry, the same for every layer.

    token_ids, position_ids: `[num_padded_rows]` int64, padded to `MIN_ROWS` with token 0 at position 0.
    logit_rows: `[max(num_logits + num_scored, MIN_ROWS)]` int64: the last row of each sequence that samples, then the
        rows before the tokens that are scored (padded with row 0).
    slots: `[num_rows]` int64, where each row's keys and values go.
    """

    def __init__(self, sequences: Sequence[SequenceStep], *, page_size: int, device: torch.device) -> None:
        self.num_rows = sum(len(sequence.token_ids) - sequence.start for sequence in sequences)
        token_ids = np.zeros(max(self.num_rows, MIN_ROWS), dtype=np.int64)
        position_ids = np.zeros_like(token_ids)
        layouts: list[SequenceLayout] = []
        written: list[SlotRun] = []
        logit_rows: list[int] = []
        scored_rows: list[int] = []
        row = 0
        for sequence in sequences:
            start, end = sequence.start, len(sequence.token_ids)
            num_rows = end - start
            token_ids[row : row + num_rows] = sequence.token_ids[start:end]
            position_ids[row : row + num_rows] = np.arange(start, end)
            runs = slot_runs(sequence.page_ids, page_size, end)
            is_decode = num_rows == 1 and start >= sequence.num_prompt_tokens
            layouts.append(SequenceLayout(row, num_rows, start, is_decode, runs))
            written.extend(runs_from(runs, start))
            if sequence.scored is not None:
                scored_rows.extend(range(row, row + len(sequence.scored.token_ids)))
            row += num_rows
            if sequence.sampling is not None:
                logit_rows.append(row - 1)
        self.sequences = tuple(layouts)
        self.num_logits = len(logit_rows)
        self.num_scored = len(scored_rows)
        logit_rows.extend(scored_rows)
        logit_rows.extend([0] * (MIN_ROWS - len(logit_rows)))
        self.token_ids = torch.from_numpy(token_ids).to(device)
        self.position_ids = torch.from_numpy(position_ids).to(device)
        self.logit_rows = torch.tensor(logit_rows, dtype=torch.int64, device=device)
        self._written = written
        self.slots = slots_of(written, device)

    def write(self, keys: torch.Tensor, values: torch.Tensor, new_keys: torch.Tensor, new_values: torch.Tensor) -> None:
        """Copy this step's keys and values into one layer of the pool.

        keys, values: the layer's tensors of `KVPool`, changed in place.
        new_keys `[num_padded_rows, num_kv_heads, head_dim]`, new_values `[num_padded_rows, num_kv_heads, v_head_dim]`.
        """
        new_keys = new_keys[: self.num_rows].transpose(0, 1)
        new_values = new_values[: self.num_rows].transpose(0, 1)
        if len(self._written) == 1:
            first_slot, length = self._written[0]
            keys.narrow(1, first_slot, length).copy_(new_keys)
            values.narrow(1, first_slot, length).copy_(new_values)
        else:
            keys.index_copy_(1, self.slots, new_keys)
            values.index_copy_(1, self.slots, new_values)


def slot_runs(page_ids: PageIds, page_size: int, num_tokens: int) -> tuple[SlotRun, ...]:
    """The slots of positions `[0, num_tokens)` as few runs as the pages allow, in the order of the sequence."""
    num_pages = -(-num_tokens // page_size)
    pages = page_ids[:num_pages]
    breaks = np.flatnonzero(pages[1:] != pages[:-1] + 1) + 1
    bounds = [0, *breaks.tolist(), num_pages]
    runs = [SlotRun(int(pages[first]) * page_size, (last - first) * page_size) for first, last in pairwise(bounds)]
    overhang = num_pages * page_size - num_tokens
    if overhang:
        runs[-1] = SlotRun(runs[-1].first_slot, runs[-1].length - overhang)
    return tuple(runs)


def runs_from(runs: Sequence[SlotRun], position: int) -> Iterator[SlotRun]:
    """The part of a sequence's `runs` from `position` on."""
    skipped = position
    for first_slot, length in runs:
        if skipped < length:
            yield SlotRun(first_slot + skipped, length - skipped)
        skipped = max(0, skipped - length)


def slots_of(runs: Sequence[SlotRun], device: torch.device) -> torch.Tensor:
    """Every slot of the runs in order, `[num_slots]` int64."""
    slots = np.concatenate([np.arange(first_slot, first_slot + length) for first_slot, length in runs])
    return torch.from_numpy(slots).to(device)
