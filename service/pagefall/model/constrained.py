"""Answers that are held to a grammar: which tokens may come next.

Everything is derived from a sequence's own answer so far, so chunks, preemption and what runs beside it change nothing.
The masks of a step are computed when they are first asked for: on a GPU that is while the forward runs, since its
launch returns at once. On a CPU it is after it, in the same thread: 16 masks of JSON take 0.9 ms of CPU time (0.05 a
mask), which is all that a helper thread could save of a step, and it would take a core from torch's threads meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import torch
from llguidance import LLMatcher

from pagefall.messages import RequestId, SequenceStep

logger = logging.getLogger(__name__)

_GRACE_SECONDS: Final = 1.0
_SECONDS_PER_TOKEN: Final = 0.005
"""CPU time that a request's masks may take: what is slower would slow down everybody. A mask of JSON takes 0.03 ms."""


class MatcherSource(Protocol):
    """Makes matchers; see `text.grammars.Grammars`."""

    def matcher(self, grammar: str) -> LLMatcher:
        """At the start. Raises an exception of any kind where the grammar cannot be used after all."""

    def discard(self, grammar: str) -> None:
        """The compiled grammar has failed and must not be used again."""


class StepMasks:
    """What a step's constrained rows may be followed by.

    `rows`: which rows of the step's logits these are. `failed`: requests whose answer cannot go on, once `bias` was
    read; their rows allow everything, and what is sampled there is to be thrown away.
    """

    def __init__(self, rows: Sequence[int], compute: Callable[[set[RequestId]], torch.Tensor]) -> None:
        """`compute` makes `bias`, and adds to the set those that failed."""
        self.rows = list(rows)
        self.failed: set[RequestId] = set()
        self._compute = compute

    @cached_property
    def bias(self) -> torch.Tensor:
        """`[len(rows), vocab_size]` float32 on the logits' device: 0 where a token is allowed, at least once a row, and
        -inf elsewhere. It is added, as a sum takes a tenth of the time of a selection on a CPU.
        """
        return self._compute(self.failed)

    def of(self, logits: torch.Tensor) -> torch.Tensor:
        """A copy of `logits[rows]`, -inf where a token is not allowed, each row with a finite maximum.

        logits `[num_rows, vocab_size]` float32, whose rows have finite maxima.
        """
        if len(self.rows) < len(logits):
            logits = logits.index_select(0, torch.tensor(self.rows, device=logits.device))
        masked = logits + self.bias
        is_empty = masked.amax(dim=-1, keepdim=True) == float("-inf")
        # The model may take all that is allowed as impossible: then they are all as likely.
        return torch.where(is_empty, self.bias, masked) if bool(is_empty.any()) else masked

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` with its rows replaced by `of(logits)`. Not changed."""
        masked = self.of(logits)
        if len(self.rows) == len(logits):
            return masked
        return logits.index_copy(0, torch.tensor(self.rows, device=logits.device), masked)


class Constraints:
    """Not thread-safe: it belongs to the thread that owns the device. Keeps one matcher per constrained request."""

    def __init__(
        self,
        source: MatcherSource | None,
        vocab_size: int,
        device: torch.device,
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Without a `source` every request with a grammar fails. `clock`: CPU seconds of this thread."""
        self._source = source
        self._vocab_size = vocab_size
        self._device = device
        self._clock = clock
        # Of a tokenizer with more tokens than the model has logits, the last word holds some that are no logits.
        self._last_word = np.int32(-1 if vocab_size % 32 == 0 else (1 << vocab_size % 32) - 1)
        is_allowed = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
        self._bias_of_byte = torch.where(is_allowed.bool(), 0.0, float("-inf")).to(device)
        self._answers: dict[RequestId, _ConstrainedAnswer] = {}

    def masks(self, sequences: Sequence[SequenceStep]) -> StepMasks | None:
        """For the sequences that are sampled in this step, row by row; None where none has a grammar."""
        rows = [row for row, sequence in enumerate(sequences) if _grammar(sequence) is not None]
        if not rows:
            return None
        return StepMasks(rows, lambda failed: self._compute([sequences[row] for row in rows], failed))

    def forget(self, request_ids: Iterable[RequestId]) -> None:
        """Drop what is kept about these requests. Unknown ids are ignored."""
        for request_id in request_ids:
            self._answers.pop(request_id, None)

    def _compute(self, sequences: Sequence[SequenceStep], failed: set[RequestId]) -> torch.Tensor:
        num_words = -(-self._vocab_size // 32)
        bits = np.full((len(sequences), num_words), -1, dtype=np.int32)
        for row, sequence in enumerate(sequences):
            reason = self._fill(sequence, bits[row])
            if reason is not None:
                bits[row] = -1
                failed.add(sequence.request_id)
                logger.warning("%s: the answer ends, its constraint failed: %s", sequence.request_id, reason)
                self.forget([sequence.request_id])
                if self._source is not None:
                    self._source.discard(_grammar(sequence) or "")
        packed = torch.from_numpy(bits.view(np.uint8)).to(self._device, non_blocking=True)
        # Eight tokens a look-up.
        return self._bias_of_byte.index_select(0, packed.flatten().int()).view(len(bits), -1)[:, : self._vocab_size]

    def _fill(self, sequence: SequenceStep, words: np.ndarray) -> str | None:
        """Writes the mask into `words`; the reason if there is none."""
        answer = self._answers.get(sequence.request_id)
        began = self._clock()
        if answer is None:
            if self._source is None:
                return "this engine has no grammars"
            try:
                answer = _ConstrainedAnswer(self._source.matcher(_grammar(sequence) or ""))
            except Exception as error:  # noqa: BLE001 - it was tried out before; whatever is wrong now, others go on
                return str(error)
            self._answers[sequence.request_id] = answer
        reason = answer.fill(sequence, words)
        words[-1] &= self._last_word
        if reason is None and not words.any():
            reason = "it allows no token of this model"
        answer.seconds += self._clock() - began
        num_tokens = len(sequence.token_ids) - sequence.num_prompt_tokens
        if reason is None and answer.seconds > _GRACE_SECONDS + _SECONDS_PER_TOKEN * num_tokens:
            return f"it took {answer.seconds:.2f} s of CPU time for {num_tokens} tokens"
        return reason


class _ConstrainedAnswer:
    """One request's matcher, and the tokens that it has seen."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.seconds = 0.0
        self._matcher = matcher
        self._consumed = np.empty(0, dtype=np.uint32)

    def fill(self, sequence: SequenceStep, words: np.ndarray) -> str | None:
        """Writes what may follow the answer so far into `words`, `[ceil(vocab_size / 32)]` int32, lowest bit first."""
        token_ids = sequence.token_ids[sequence.num_prompt_tokens :]
        num_consumed = len(self._consumed)
        if not np.array_equal(token_ids[:num_consumed], self._consumed):
            self._matcher.reset()
            num_consumed = 0
        for token_id in token_ids[num_consumed:].tolist():
            if self._matcher.is_stopped() and not self._matcher.is_error():
                break  # at the end of the grammar, with a request that goes on all the same (`ignore_eos`)
            if not self._matcher.consume_token(token_id):
                return self._matcher.get_error() or "it does not accept the answer so far"
        self._consumed = token_ids
        mask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[: len(words)]
        if self._matcher.is_error():
            return self._matcher.get_error()
        words[:] = 0
        words[: len(mask)] = mask
        return None


def _grammar(sequence: SequenceStep) -> str | None:
    return None if sequence.sampling is None else sequence.sampling.grammar
