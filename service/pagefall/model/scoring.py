"""What the model thinks of tokens that are given: the log-probabilities of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pagefall.messages import ScoredTokens, SequenceStep, TokenLogprob
from pagefall.model.top_logits import top


def prompt_scores(logits: torch.Tensor, sequences: Sequence[SequenceStep]) -> tuple[tuple[TokenLogprob, ...], ...]:
    """One entry a sequence, empty where nothing is to be scored.

    `logits` `[at least all scored tokens, vocab_size]`, in the order of the sequences; those behind are ignored.
    """
    scores: list[tuple[TokenLogprob, ...]] = []
    row = 0
    for sequence in sequences:
        num_rows = 0 if sequence.scored is None else len(sequence.scored.token_ids)
        scores.append(() if sequence.scored is None else _scores(logits[row : row + num_rows], sequence.scored))
        row += num_rows
    return tuple(scores)


def _scores(logits: torch.Tensor, scored: ScoredTokens) -> tuple[TokenLogprob, ...]:
    if not len(scored.token_ids):
        return ()
    logprobs = logits.float().log_softmax(dim=-1)
    token_ids = torch.from_numpy(scored.token_ids.astype("int64")).to(logits.device)
    chosen: list[float] = logprobs.gather(1, token_ids[:, None])[:, 0].tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(chosen)
    if count := min(scored.num_top_logprobs, logits.shape[-1]):
        values, ids = top(logprobs, count)
        tops = [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return tuple(map(TokenLogprob, scored.token_ids.tolist(), chosen, tops))
