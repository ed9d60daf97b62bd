"""Penalties for tokens that were seen, and the counts they need, kept from step to step.

Definitions: repetition penalty as in CTRL (Keskar et al., 2019) and `transformers`: over prompt and answer, positive
logits are divided by it, negative ones multiplied. Frequency and presence penalty as OpenAI documents them, over the
answer alone: `frequency * count + presence * (count > 0)` is subtracted. Then `logit_bias` is added.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from pagefall.messages import SamplingParams, SequenceStep, TokenIds


class TokenHistory:
    """The different tokens of one request's prompt and answer, and how often each stands in the answer."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._answer_counts = array("i")
        self._token_ids: TokenIds = np.empty(0, dtype=np.uint32)
        self._num_prompt_tokens = 0

    def update(self, sequence: SequenceStep) -> None:
        """Count what is new since the last update; count again from the start where that is not a continuation."""
        token_ids, num_counted = sequence.token_ids, len(self._token_ids)
        extends = (
            sequence.num_prompt_tokens == self._num_prompt_tokens
            and num_counted <= len(token_ids)
            and np.array_equal(token_ids[:num_counted], self._token_ids)
        )
        if not extends:
            self._places.clear()
            del self._answer_counts[:]
            num_counted = 0
        for position, token_id in enumerate(token_ids[num_counted:].tolist(), num_counted):
            place = self._places.setdefault(token_id, len(self._answer_counts))
            if place == len(self._answer_counts):
                self._answer_counts.append(0)
            self._answer_counts[place] += position >= sequence.num_prompt_tokens
        self._token_ids, self._num_prompt_tokens = token_ids, sequence.num_prompt_tokens

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """Each token once, `[num_different]`."""
        return np.fromiter(self._places, dtype=np.int64, count=len(self._places))

    @property
    def answer_counts(self) -> npt.NDArray[np.int32]:
        """Of `token_ids`, `[num_different]`; 0 for one of the prompt alone."""
        return np.array(self._answer_counts, dtype=np.int32)


def needs_history(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0


def penalise(
    logits: torch.Tensor, rows: Sequence[int], params: Sequence[SamplingParams], histories: Sequence[TokenHistory]
) -> None:
    """Change `logits[rows]` in place, `params[i]` and `histories[i]` being those of row `rows[i]`.

    logits `[num_rows, vocab_size]` float32. Only what a request has seen is touched.
    """
    seen = [history.token_ids for history in histories]
    lengths = [len(token_ids) for token_ids in seen]

    def per_token(values: Sequence[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(logits.device)

    place = (
        torch.from_numpy(np.repeat(np.array(rows), lengths)).to(logits.device),
        torch.from_numpy(np.concatenate(seen)).to(logits.device),
    )
    counts = torch.from_numpy(np.concatenate([history.answer_counts for history in histories])).to(logits.device)
    repetition = per_token([row.repetition_penalty for row in params])
    frequency = per_token([row.frequency_penalty for row in params])
    presence = per_token([row.presence_penalty for row in params])
    values = logits[place]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[place] = values - frequency * counts - presence * (counts > 0)


def add_bias(logits: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """Add every row's `logit_bias` to its logits, in place. Ids outside the vocabulary are the edge's business."""
    rows = [row for row, settings in enumerate(params) for _ in settings.logit_bias]
    if rows:
        ids, values = zip(*(entry for settings in params for entry in settings.logit_bias), strict=True)
        place = (torch.tensor(rows, device=logits.device), torch.tensor(ids, device=logits.device))
        logits.index_put_(place, torch.tensor(values, dtype=logits.dtype, device=logits.device), accumulate=True)
