"""Paged attention in plain torch: exact, on any device, with no copy of the context where pages are contiguous.

Queries are taken in tiles of at most `QUERY_TILE` positions, so that a tile of scores stays in cache; keys and values
in the absolute tiles of `step_layout`. Scores of a tile are one batched product over KV heads (the query heads of a
group stacked as rows), softmax runs over the whole row at once, and the weighted sum adds tile after tile in order.

Measured on 2 Zen 4 cores in bfloat16 at 2,048 tokens: about three times torch's CPU flash attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pagefall.model.kv_pool import KVPool
from pagefall.model.step_layout import KEY_TILE, SequenceLayout, StepLayout

QUERY_TILE = 128
"""Positions a tile of queries covers at most, cut at absolute multiples."""


class AttentionOptions(NamedTuple):
    """What a layer adds to plain causal attention. `sinks`: `[num_heads]`, one extra logit a head that takes weight
    and gives nothing (gpt-oss).
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class PagedAttention:
    """Attention of one step over one pool. Made once per step; `attend` is called once a layer."""

    def __init__(self, layout: StepLayout, pool: KVPool) -> None:
        self._layout = layout
        self._pool = pool

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        """Write this step's keys and values, then attend every row to its own sequence up to itself.

        query `[num_padded_rows, num_heads, head_dim]`, key and value `[num_padded_rows, num_kv_heads, head_dim]`;
        returns `[num_padded_rows, num_heads * v_head_dim]` in the query's dtype. Rows past the layout's are zero.
        """
        layout = self._layout
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        layout.write(keys, values, key, value)
        num_rows, num_heads = query.shape[:2]
        num_kv_heads, v_head_dim = values.shape[0], values.shape[2]
        group = num_heads // num_kv_heads
        grouped = query.view(num_rows, num_kv_heads, group, query.shape[2])
        output = query.new_empty(num_rows, num_kv_heads, group, v_head_dim)
        if num_rows > layout.num_rows:
            output[layout.num_rows :] = 0
        for sequence in layout.sequences:
            _attend_sequence(sequence, grouped, keys, values, options, output)
        return output.view(num_rows, num_heads * v_head_dim)


def _attend_sequence(
    sequence: SequenceLayout,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: AttentionOptions,
    output: torch.Tensor,
) -> None:
    """Fill `output[rows]`; query and output are `[num_rows, num_kv_heads, group, head_dim]` over all rows."""
    key_tiles: list[torch.Tensor] = []
    value_tiles: list[torch.Tensor] = []
    first_tile = _first_visible(sequence.start, options.sliding_window) // KEY_TILE
    for tile in sequence.tiles[first_tile:]:
        if tile.slots is None:
            key_tiles.append(keys[:, :, tile.first_slot : tile.first_slot + tile.length])
            value_tiles.append(values[:, tile.first_slot : tile.first_slot + tile.length])
        else:
            key_tiles.append(keys.index_select(2, tile.slots))
            value_tiles.append(values.index_select(1, tile.slots))
    origin = first_tile * KEY_TILE
    row, position, end = sequence.first_row, sequence.start, sequence.start + sequence.num_rows
    while position < end:
        num_queries = min(QUERY_TILE - position % QUERY_TILE, end - position)
        skipped = _first_visible(position, options.sliding_window) // KEY_TILE - first_tile
        output[row : row + num_queries] = _attend_tile(
            query[row : row + num_queries],
            key_tiles[skipped:],
            value_tiles[skipped:],
            position,
            origin + skipped * KEY_TILE,
            options,
        )
        row += num_queries
        position += num_queries


def _first_visible(position: int, sliding_window: int | None) -> int:
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


def _attend_tile(
    query: torch.Tensor,
    key_tiles: list[torch.Tensor],
    value_tiles: list[torch.Tensor],
    position: int,
    origin: int,
    options: AttentionOptions,
) -> torch.Tensor:
    """Rows at positions `[position, position + num_queries)` against columns from `origin` to the last row's own.

    query `[num_queries, num_kv_heads, group, head_dim]`; returns the same shape with `v_head_dim`.
    """
    num_queries, num_kv_heads, group, head_dim = query.shape
    num_columns = position + num_queries - origin
    stacked = (query.transpose(0, 1) * options.scale).reshape(num_kv_heads, num_queries * group, head_dim)
    if num_columns <= KEY_TILE:
        scores = torch.bmm(stacked, key_tiles[0][:, :, :num_columns])
    else:
        scores = stacked.new_empty(num_kv_heads, num_queries * group, num_columns)
        for first, tile in zip(range(0, num_columns, KEY_TILE), key_tiles, strict=False):
            scores[:, :, first : first + KEY_TILE] = torch.bmm(stacked, tile[:, :, : num_columns - first])
    if options.softcap is not None:
        scores = scores.div_(options.softcap).tanh_().mul_(options.softcap)
    _mask(scores.view(num_kv_heads, num_queries, group, num_columns), position, origin, options.sliding_window)
    weights = _softmax(scores, options.sinks)
    result = torch.bmm(weights[:, :, :KEY_TILE], value_tiles[0][:, :num_columns])
    for first, tile in zip(range(KEY_TILE, num_columns, KEY_TILE), value_tiles[1:], strict=False):
        result = torch.baddbmm(result, weights[:, :, first : first + KEY_TILE], tile[:, : num_columns - first])
    return result.view(num_kv_heads, num_queries, group, -1).transpose(0, 1)


def _mask(scores: torch.Tensor, position: int, origin: int, sliding_window: int | None) -> None:
    """Set to -inf, in place, what a row may not see. scores `[num_kv_heads, num_queries, group, num_columns]`."""
    num_queries = scores.shape[1]
    if num_queries > 1:
        own = scores[:, :, :, position - origin :]
        own += torch.full((num_queries, num_queries), float("-inf"), dtype=scores.dtype, device=scores.device).triu_(1)[
            :, None
        ]
    if sliding_window is not None:
        hidden = _first_visible(position + num_queries - 1, sliding_window) - origin
        if hidden > 0:
            columns = torch.arange(origin, origin + hidden, device=scores.device)
            oldest = torch.arange(position, position + num_queries, device=scores.device) - (sliding_window - 1)
            scores[:, :, :, :hidden].masked_fill_(columns < oldest[:, None, None], float("-inf"))


def _softmax(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Over the columns. scores `[num_kv_heads, num_queries * group, num_columns]`."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    num_kv_heads, num_rows, _ = scores.shape
    per_group = sinks.view(num_kv_heads, -1)
    column = per_group.repeat(1, num_rows // per_group.shape[1])[:, :, None].to(scores.dtype)
    return torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[:, :, :-1]
