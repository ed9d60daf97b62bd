"""Paged attention in plain torch, with no copy of the context where pages are contiguous.

A chunk of a prompt goes tile by tile (`prefill_attention`), a token of an answer in one call of torch's own attention
(`decode_attention`) where torch has what the layer asks for. Results depend neither on pages nor on neighbours.
"""

from __future__ import annotations

from typing import Literal

import torch

from pagefall.model.attention_options import AttentionOptions
from pagefall.model.decode_attention import DecodePlan, plan_decodes
from pagefall.model.kv_pool import KVPool
from pagefall.model.prefill_attention import attend_chunk
from pagefall.model.scripting import Scripted
from pagefall.model.step_layout import SequenceLayout, StepLayout, slots_of


class PagedAttention:
    """Attention of one step over one pool. Made once per step; `attend` is called once a layer."""

    def __init__(self, layout: StepLayout, pool: KVPool, scripted: Scripted) -> None:
        self.pool = pool
        self._layout = layout
        self._scripted = scripted
        self._decodes = [sequence for sequence in layout.sequences if sequence.is_decode]
        self._others = [sequence for sequence in layout.sequences if not sequence.is_decode]
        self._decode_plans: dict[int | None, DecodePlan] = {}
        self._slots: dict[int, torch.Tensor] = {}

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
        *,
        wanted: Literal["every row", "last rows"] = "every row",
    ) -> torch.Tensor:
        """Write this step's keys and values, then attend every row to its own sequence up to itself.

        query `[num_padded_rows, num_heads, head_dim]`, key `[num_padded_rows, num_kv_heads, head_dim]`, value
        `[num_padded_rows, num_kv_heads, v_head_dim]`; returns `[num_padded_rows, num_heads * v_head_dim]` in the
        query's dtype. Rows past the layout's are zero; so are, where only each sequence's "last rows" are wanted, all
        but these.
        """
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        self._layout.write(keys, values, key, value)
        num_rows, num_heads, head_dim = query.shape
        num_kv_heads, v_head_dim = values.shape[0], values.shape[2]
        grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        output = query.new_zeros(num_rows, num_kv_heads, num_heads // num_kv_heads, v_head_dim)
        plain = options.softcap is None and options.sinks is None and head_dim == v_head_dim
        tiled = self._others
        if self._decodes and plain and query.device.type == "cpu":
            self._scripted.attend_tokens(grouped, keys, values, self.decode_plan(options), options.scale, output)
        else:
            tiled = [*self._decodes, *tiled]
        for sequence in tiled:
            skipped = 0 if wanted == "every row" else sequence.num_rows - 1
            rows = slice(sequence.first_row + skipped, sequence.first_row + sequence.num_rows)
            whole = self._context(sequence, keys), self._context(sequence, values)
            attend_chunk(grouped[rows], *whole, sequence.start + skipped, options, output[rows])
        return output.view(num_rows, num_heads * v_head_dim)

    def decode_plan(self, options: AttentionOptions) -> DecodePlan:
        """Made once for all layers that share a window."""
        plan = self._decode_plans.get(options.sliding_window)
        if plan is None:
            dtype, device = self.pool.keys[0].dtype, self.pool.keys[0].device
            plan = plan_decodes(self._decodes, options, dtype=dtype, device=device)
            self._decode_plans[options.sliding_window] = plan
        return plan

    def _context(self, sequence: SequenceLayout, of: torch.Tensor) -> torch.Tensor:
        """All of the sequence's keys or values, `[num_kv_heads, length, head_dim]`; copied only if in several runs."""
        if len(sequence.runs) == 1:
            return of.narrow(1, *sequence.runs[0])
        slots = self._slots.get(sequence.first_row)
        if slots is None:
            slots = self._slots[sequence.first_row] = slots_of(sequence.runs, of.device)
        return of.index_select(1, slots)
