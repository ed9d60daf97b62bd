"""A model without weights, whose tokens tell whether it was given the right pages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from pagefall.messages import StepPlan, StepResult, TokenIds, TokenLogprob


class FakeModel:
    """The next token is a checksum of the whole sequence as it stands *in the pages*: a wrong page, a slot that was
    never written or was written by a stranger gives a wrong token. `answer_alone` says what is right.
    """

    def __init__(self, *, num_pages: int, page_size: int, vocab_size: int = 256) -> None:
        self.vocab_size = vocab_size
        self.plans: list[StepPlan] = []
        self._page_size = page_size
        self.slots = np.zeros((num_pages, page_size), dtype=np.uint32)

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for sequence in plan.sequences:
            for position in range(sequence.start, len(sequence.token_ids)):
                page_id = sequence.page_ids[position // self._page_size]
                self.slots[page_id, position % self._page_size] = sequence.token_ids[position]
        sampled: list[TokenLogprob | None] = []
        for sequence in plan.sequences:
            if sequence.sampling is None:
                sampled.append(None)
            else:
                read = self.slots[sequence.page_ids].reshape(-1)[: len(sequence.token_ids)]
                sampled.append(TokenLogprob(self.next_token(read), -1.0))
        return StepResult(step=plan.step, sampled=tuple(sampled), forward_seconds=0.25, sample_seconds=0.125)

    def next_token(self, token_ids: TokenIds) -> int:
        return zlib.crc32(token_ids.tobytes()) % self.vocab_size

    def answer_alone(self, prompt: Sequence[int], max_tokens: int, stop: frozenset[int] = frozenset()) -> list[int]:
        """The answer of a server that has only this request and no cache; a stop token is its last one."""
        token_ids = list(prompt)
        while len(token_ids) < len(prompt) + max_tokens and (
            len(token_ids) == len(prompt) or token_ids[-1] not in stop
        ):
            token_ids.append(self.next_token(np.array(token_ids, dtype=np.uint32)))
        return token_ids[len(prompt) :]
