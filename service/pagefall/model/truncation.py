"""Drawing a token from the head of the distribution: top-k, top-p and min-p, or from all of it.

Tokens stand in falling order of probability (equal ones by rising id). Each rule keeps a head of that order and the
shortest head counts, applied as SGLang documents: top-k first, top-p over what top-k leaves, min-p last.

- top-k keeps `top_k` tokens (0: all).
- top-p (Holtzman et al., 2020) keeps the shortest head whose probability is at least `top_p`.
- min-p (Nguyen et al., 2024) keeps tokens at least `min_p` times as likely as the first.

The draw is by the inverse of the cumulated distribution: one uniform number per row, so a row's token depends on its
own logits, settings and number alone.
"""

from __future__ import annotations

import torch

from pagefall.model.top_logits import top

NUM_CANDIDATES = (256, 4096)
"""Sorted at first, then where the head of a row may be longer; what is longer still is sorted in full."""

_BLOCK = 256


def draw_truncated(
    logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Token ids `[num_rows]` int64.

    logits `[num_rows, vocab_size]` float32, divided by the temperature, each row with a finite maximum; the others
    `[num_rows]`: `top_k` int64 (0: all), `top_p`, `min_p` and `uniform` float64.
    """
    vocab_size = logits.shape[-1]
    largest = logits.amax(dim=-1, keepdim=True)
    total = (logits - largest).exp_().sum(dim=-1, dtype=torch.float64)
    token_ids = torch.empty_like(top_k)
    rows = torch.arange(len(logits), device=logits.device)
    for count in (*(count for count in NUM_CANDIDATES if count < vocab_size), vocab_size):
        values, ids = top(logits[rows], count)
        chosen, is_exact = _draw_sorted(
            values, total[rows], top_k[rows], top_p[rows], min_p[rows], uniform[rows], is_whole=count == vocab_size
        )
        token_ids[rows] = ids.gather(1, chosen[:, None])[:, 0]
        rows = rows[~is_exact]
        if len(rows) == 0:
            break
    return token_ids


def _draw_sorted(
    values: torch.Tensor,
    total: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniform: torch.Tensor,
    *,
    is_whole: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in `values` (`[num_rows, count]`, falling), and whether the head lies within them for certain.

    `total` is the sum of all weights of a row, where the first one's is 1.
    """
    count = values.shape[1]
    weights = (values - values[:, :1]).exp().double()
    cumulated = weights.cumsum(dim=-1)
    place = torch.arange(count, device=values.device)
    by_top_k = (top_k[:, None] == 0) | (place < top_k[:, None])
    in_top_k = torch.where(by_top_k, weights, 0.0).sum(dim=-1)
    mass = torch.where(top_k == 0, total, in_top_k)
    by_top_p = (top_p[:, None] >= 1) | (cumulated - weights < (top_p * mass)[:, None])
    # What has no weight is never drawn, and would only make a head look longer than it is.
    kept = by_top_k & by_top_p & (weights >= min_p[:, None]) & (weights > 0)
    kept[:, 0] = True
    last = kept.sum(dim=-1, keepdim=True) - 1
    # A head that ends on the last value may have equals outside, and a longer top-k more mass than is seen here.
    is_exact = (values.gather(1, last)[:, 0] > values[:, -1]) & (top_k <= count)
    if is_whole:
        is_exact.fill_(value=True)
    in_head = torch.minimum(cumulated, cumulated.gather(1, last))
    return _first_above(in_head, uniform * in_head[:, -1]), is_exact


def draw_whole(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Token ids `[num_rows]` int64, in proportion to `exp(logits)`; tokens cumulate by rising id.

    logits `[num_rows, vocab_size]` float32, each row with a finite maximum; uniform `[num_rows]` float64.
    """
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp_()
    weights = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % _BLOCK)).view(len(logits), -1, _BLOCK)
    blocks = weights.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    target = uniform * blocks[:, -1]
    block = _first_above(blocks, target)
    rows = torch.arange(len(logits), device=logits.device)
    before = torch.where(block > 0, blocks[rows, (block - 1).clamp(min=0)], 0.0)
    within = weights[rows, block].double().cumsum(dim=-1)
    return block * _BLOCK + _first_above(within, target - before)


def _first_above(cumulated: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place that exceeds `target`; where rounding left none, the last that adds anything."""
    last = (cumulated < cumulated[:, -1:]).sum(dim=-1)
    return torch.minimum((cumulated <= target[:, None]).sum(dim=-1), last)
