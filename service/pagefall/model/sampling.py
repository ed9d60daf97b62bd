"""Choosing the next tokens of a step.

The law of this file: a row's token depends on its own logits, settings, seed and position in the answer, never on the
rows beside it, on how its prompt was cut into chunks or on whether it was preempted.

Order of a row's steps: repetition, frequency and presence penalty, `logit_bias` (`penalties.py`); what its grammar
does not allow becomes impossible (`constrained.py`); then the largest for greedy rows, else temperature, top-k, top-p,
min-p and one draw (`truncation.py`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from pagefall.messages import RequestId, SamplingParams, SequenceStep, TokenLogprob
from pagefall.model.constrained import StepMasks
from pagefall.model.penalties import TokenHistory, add_bias, needs_history, penalise
from pagefall.model.top_logits import argmax, top
from pagefall.model.truncation import draw_truncated, draw_whole
from pagefall.model.uniforms import uniforms

logger = logging.getLogger(__name__)

LEAST_TEMPERATURE = 1e-5
"""Below it a request is greedy, as in vLLM: the division would leave one token anyway, or overflow."""

_SEED_MASK = (1 << 64) - 1


class Sampler:
    """Not thread-safe: it belongs to the thread that owns the device.

    Keeps, per request, what its next token needs: a drawn seed, and token counts where it has penalties.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._drawn_seeds: dict[RequestId, int] = {}
        self._histories: dict[RequestId, TokenHistory] = {}
        self._has_warned = False

    def sample(
        self, logits: torch.Tensor, sequences: Sequence[SequenceStep], masks: StepMasks | None = None
    ) -> tuple[TokenLogprob, ...]:
        """One token per row. `logits` `[num_sequences, vocab_size]`, any float dtype, not changed.

        Every `sequences[i].sampling` is set. `masks`: of the rows that have a grammar. Logprobs are the model's own, in
        fp32, before penalties, grammar and temperature;
        `logprob` is 0 where the request did not ask for any. NaN counts as impossible (-inf) and is logged once.
        """
        if not sequences:
            return ()
        params = [_params(sequence) for sequence in sequences]
        logits = self._finite(logits)
        adjusted = self._adjusted(logits, params, sequences, masks)
        token_ids = self._choose(adjusted, params, sequences)
        chosen: list[int] = token_ids.tolist()
        logprobs = _logprobs(logits, token_ids, params)
        return tuple(logprobs.get(row) or TokenLogprob(token_id, 0.0) for row, token_id in enumerate(chosen))

    def forget(self, request_ids: Iterable[RequestId]) -> None:
        """Drop what is kept about these requests. Unknown ids are ignored."""
        for request_id in request_ids:
            self._drawn_seeds.pop(request_id, None)
            self._histories.pop(request_id, None)

    def _finite(self, logits: torch.Tensor) -> torch.Tensor:
        """fp32 logits, whose rows have a finite maximum."""
        logits = logits.float()
        if bool(logits.amax(dim=-1).isfinite().all()):  # NaN and inf reach the maximum
            return logits
        if not self._has_warned:
            logger.error("The model computed logits that are not finite; such tokens are taken as impossible.")
            self._has_warned = True
        logits = logits.nan_to_num(nan=float("-inf"), posinf=torch.finfo(torch.float32).max, neginf=float("-inf"))
        is_empty = logits.amax(dim=-1, keepdim=True) == float("-inf")
        return torch.where(is_empty, 0.0, logits)

    def _adjusted(
        self,
        logits: torch.Tensor,
        params: Sequence[SamplingParams],
        sequences: Sequence[SequenceStep],
        masks: StepMasks | None,
    ) -> torch.Tensor:
        """With penalties, bias and grammars; `logits` itself where no row has any."""
        penalised = [row for row, settings in enumerate(params) if needs_history(settings)]
        if not penalised and not any(settings.logit_bias for settings in params):
            return logits if masks is None else masks.apply(logits)
        adjusted = logits.clone()
        if penalised:
            histories = [self._history(sequences[row]) for row in penalised]
            penalise(adjusted, penalised, [params[row] for row in penalised], histories)
        add_bias(adjusted, params)
        return adjusted if masks is None else masks.apply(adjusted)

    def _history(self, sequence: SequenceStep) -> TokenHistory:
        history = self._histories.get(sequence.request_id)
        if history is None:
            history = self._histories[sequence.request_id] = TokenHistory()
        history.update(sequence)
        return history

    def _choose(
        self, logits: torch.Tensor, params: Sequence[SamplingParams], sequences: Sequence[SequenceStep]
    ) -> torch.Tensor:
        """Token ids `[num_rows]` int64."""
        greedy = [row for row, settings in enumerate(params) if _is_greedy(settings)]
        if len(greedy) == len(params):
            return argmax(logits)
        token_ids = torch.empty(len(params), dtype=torch.int64, device=logits.device)
        if greedy:
            token_ids[greedy] = argmax(logits[greedy])
        sampled = [row for row, settings in enumerate(params) if not _is_greedy(settings)]
        whole = [row for row in sampled if not _is_truncated(params[row], self._vocab_size)]
        truncated = [row for row in sampled if _is_truncated(params[row], self._vocab_size)]
        if whole:
            scaled, uniform = self._scaled(logits, whole, params, sequences)
            token_ids[whole] = draw_whole(scaled, uniform)
        if truncated:
            scaled, uniform = self._scaled(logits, truncated, params, sequences)
            settings = [params[row] for row in truncated]
            token_ids[truncated] = draw_truncated(
                scaled,
                top_k=torch.tensor([min(row.top_k, self._vocab_size) for row in settings], device=logits.device),
                top_p=self._doubles([row.top_p for row in settings]),
                min_p=self._doubles([row.min_p for row in settings]),
                uniform=uniform,
            )
        return token_ids

    def _scaled(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        params: Sequence[SamplingParams],
        sequences: Sequence[SequenceStep],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows' logits, their maximum at 0, divided by temperature; and their uniform numbers."""
        selected = logits if len(rows) == len(logits) else logits[rows]
        temperatures = torch.tensor([[params[row].temperature] for row in rows], device=logits.device)
        seeds = np.array([self._seed(sequences[row], params[row]) for row in rows], dtype=np.uint64)
        answered = [len(sequences[row].token_ids) - sequences[row].num_prompt_tokens for row in rows]
        uniform = uniforms(seeds, np.array(answered, dtype=np.uint32))
        # The maximum goes first, so that nothing overflows for the least temperature.
        scaled = (selected - selected.amax(dim=-1, keepdim=True)).div_(temperatures)
        return scaled, torch.from_numpy(uniform).to(logits.device)

    def _seed(self, sequence: SequenceStep, params: SamplingParams) -> int:
        if params.seed is not None:
            return params.seed & _SEED_MASK
        seed = self._drawn_seeds.get(sequence.request_id)
        if seed is None:
            seed = self._drawn_seeds[sequence.request_id] = secrets.randbits(64)
        return seed

    def _doubles(self, values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)


def _params(sequence: SequenceStep) -> SamplingParams:
    if sequence.sampling is None:
        raise ValueError(f"nothing is to be sampled for {sequence.request_id} in this step")
    return sequence.sampling


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < LEAST_TEMPERATURE or params.top_k == 1


def _is_truncated(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1 or params.min_p > 0


def _logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, params: Sequence[SamplingParams]
) -> dict[int, TokenLogprob]:
    """By row, for the rows that ask."""
    asked = {row: settings.num_top_logprobs for row, settings in enumerate(params)}
    counts = {row: count for row, count in asked.items() if count is not None}
    if not counts:
        return {}
    rows = list(counts)
    selected = logits[rows]
    logprobs = selected.log_softmax(dim=-1)
    chosen_ids = token_ids[rows]
    chosen: list[float] = logprobs.gather(1, chosen_ids[:, None])[:, 0].tolist()
    most = min(max(counts.values()), logits.shape[-1])
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(rows)
    if most:
        values, ids = top(logprobs, most)
        tops = [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return {
        row: TokenLogprob(token_id, logprob, entries[: counts[row]])
        for row, token_id, logprob, entries in zip(rows, chosen_ids.tolist(), chosen, tops, strict=True)
    }
