"""Where a step's tokens sit: rows of the flattened batch, slots of the pool, tiles of each context.

All sequences of a step are flattened into one row of tokens. A sequence's context is cut at fixed *absolute* positions
(multiples of `KEY_TILE`), whoever computes it and in whatever chunks: sums of floating-point numbers then always
run in the same order, so that in bfloat16, too, a warm prompt gives bit for bit what a cold one gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pagefall.messages import PageIds, SequenceStep

KEY_TILE = 1024
"""Positions a tile of keys and values covers. Large enough that a product is worth its call."""

MIN_ROWS = 4
"""Rows every matrix product has at least. Below it, oneDNN takes a matrix-vector path that sums in another order and,
measured on Zen 4, is also 10 to 20% slower than four rows."""

MAX_SLICES_WRITTEN = 8
"""Runs of slots written one slice at a time; with more of them one indexed copy is quicker."""


class SlotRun(NamedTuple):
    """Slots `[first_slot, first_slot + length)` hold consecutive positions of one sequence."""

    first_slot: int
    length: int


class Tile(NamedTuple):
    """Context positions `[first, first + length)`: one run of slots (a view), or several (`slots`, to be gathered)."""

    first: int
    length: int
    first_slot: int
    slots: torch.Tensor | None


class SequenceLayout(NamedTuple):
    """One sequence: rows `[first_row, first_row + num_rows)` hold positions `[start, start + num_rows)`."""

    first_row: int
    num_rows: int
    start: int
    tiles: tuple[Tile, ...]


class SlotWrite(NamedTuple):
    """Rows `[first_row, first_row + length)` go to slots from `first_slot` on."""

    first_row: int
    first_slot: int
    length: int


class StepLayout:
    """One step's geometry, the same for every layer.

    token_ids, position_ids: `[num_padded_rows]` int64, padded to `MIN_ROWS` with token 0 at position 0.
    logit_rows: `[max(num_sequences, MIN_ROWS)]` int64, the last row of each sequence that samples (padded with row 0).
    writes: slices to copy, or None where `slots` (`[num_rows]` int64) serves one indexed copy.
    """

    def __init__(self, sequences: Sequence[SequenceStep], *, page_size: int, device: torch.device) -> None:
        self.num_rows = sum(len(sequence.token_ids) - sequence.start for sequence in sequences)
        num_padded = max(self.num_rows, MIN_ROWS)
        token_ids = np.zeros(num_padded, dtype=np.int64)
        position_ids = np.zeros(num_padded, dtype=np.int64)
        layouts: list[SequenceLayout] = []
        writes: list[SlotWrite] = []
        logit_rows: list[int] = []
        row = 0
        for sequence in sequences:
            start, end = sequence.start, len(sequence.token_ids)
            num_rows = end - start
            token_ids[row : row + num_rows] = sequence.token_ids[start:end]
            position_ids[row : row + num_rows] = np.arange(start, end)
            runs = slot_runs(sequence.page_ids, page_size, end)
            tiles = tuple(_tiles(runs, end, device))
            layouts.append(SequenceLayout(row, num_rows, start, tiles))
            writes.extend(_writes(runs, start, row))
            row += num_rows
            if sequence.sampling is not None:
                logit_rows.append(row - 1)
        self.sequences = tuple(layouts)
        self.num_logits = len(logit_rows)
        logit_rows.extend([0] * (MIN_ROWS - len(logit_rows)))
        self.token_ids = torch.from_numpy(token_ids).to(device)
        self.position_ids = torch.from_numpy(position_ids).to(device)
        self.logit_rows = torch.tensor(logit_rows, dtype=torch.int64, device=device)
        self.writes: tuple[SlotWrite, ...] | None = None
        self.slots: torch.Tensor | None = None
        if len(writes) <= MAX_SLICES_WRITTEN:
            self.writes = tuple(writes)
        else:
            slots = np.concatenate([np.arange(w.first_slot, w.first_slot + w.length) for w in writes])
            self.slots = torch.from_numpy(slots).to(device)

    def write(self, keys: torch.Tensor, values: torch.Tensor, new_keys: torch.Tensor, new_values: torch.Tensor) -> None:
        """Copy this step's keys and values into one layer of the pool.

        keys, values: the layer's tensors of `KVPool`, changed in place.
        new_keys `[num_padded_rows, num_kv_heads, head_dim]`, new_values `[num_padded_rows, num_kv_heads, v_head_dim]`.
        """
        if self.writes is not None:
            for first_row, first_slot, length in self.writes:
                rows = slice(first_row, first_row + length)
                keys[:, :, first_slot : first_slot + length] = new_keys[rows].permute(1, 2, 0)
                values[:, first_slot : first_slot + length] = new_values[rows].transpose(0, 1)
        else:
            assert self.slots is not None
            keys.index_copy_(2, self.slots, new_keys[: self.num_rows].permute(1, 2, 0))
            values.index_copy_(1, self.slots, new_values[: self.num_rows].transpose(0, 1))


def slot_runs(page_ids: PageIds, page_size: int, num_tokens: int) -> list[SlotRun]:
    """The slots of positions `[0, num_tokens)` as few runs as the pages allow, in the order of the sequence."""
    num_pages = -(-num_tokens // page_size)
    pages = page_ids[:num_pages]
    breaks = np.flatnonzero(pages[1:] != pages[:-1] + 1) + 1
    bounds = [0, *breaks.tolist(), num_pages]
    runs = [
        SlotRun(int(pages[first]) * page_size, (last - first) * page_size) for first, last in itertools.pairwise(bounds)
    ]
    overhang = num_pages * page_size - num_tokens
    if overhang:
        runs[-1] = SlotRun(runs[-1].first_slot, runs[-1].length - overhang)
    return runs


def _tiles(runs: list[SlotRun], num_tokens: int, device: torch.device) -> Iterator[Tile]:
    if len(runs) == 1:  # the common case, kept cheap
        first_slot = runs[0].first_slot
        for first in range(0, num_tokens, KEY_TILE):
            yield Tile(first, min(KEY_TILE, num_tokens - first), first_slot + first, None)
        return
    pieces: list[SlotRun] = []
    first = filled = 0
    for run in runs:
        slot, left = run
        while left:
            taken = min(left, KEY_TILE - filled)
            pieces.append(SlotRun(slot, taken))
            slot, left, filled = slot + taken, left - taken, filled + taken
            if filled == KEY_TILE:
                yield _tile(first, pieces, device)
                first, filled, pieces = first + KEY_TILE, 0, []
    if pieces:
        yield _tile(first, pieces, device)


def _tile(first: int, pieces: list[SlotRun], device: torch.device) -> Tile:
    if len(pieces) == 1:
        return Tile(first, pieces[0].length, pieces[0].first_slot, None)
    slots = np.concatenate([np.arange(piece.first_slot, piece.first_slot + piece.length) for piece in pieces])
    return Tile(first, len(slots), pieces[0].first_slot, torch.from_numpy(slots).to(device))


def _writes(runs: list[SlotRun], start: int, first_row: int) -> Iterator[SlotWrite]:
    """The part of `runs` from position `start` on, as rows from `first_row` on."""
    position = 0
    for first_slot, length in runs:
        skipped = min(max(start - position, 0), length)
        if skipped < length:
            yield SlotWrite(first_row + position + skipped - start, first_slot + skipped, length - skipped)
        position += length
