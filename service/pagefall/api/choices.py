"""`n`: several answers to one prompt, each a request of its own.

The engine computes the prompt once: the scheduler lets the first of them compute it, and the others find all of its
whole pages in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.requests import GenerateRequest, Usage

MAX_CHOICES: Final = 128
"""Of one prompt."""

_MAX_ANSWERS: Final = 1024
"""Of all prompts of a body."""

_NUM_SEEDS: Final = 2**63


def choices_of(prompts: Sequence[GenerateRequest], n: int) -> tuple[GenerateRequest, ...]:
    """`n` requests for each prompt, those of one prompt side by side. With a seed, choice `i` of a prompt has seed + i.

    Raises `RequestError` if these are too many.
    """
    if n == 1:
        return tuple(prompts)
    if len(prompts) * n > _MAX_ANSWERS:
        raise RequestError(
            f"'n' asks for {n} answers to each of {len(prompts)} prompts: send prompts for {_MAX_ANSWERS} answers at "
            "most at once.",
            param="n",
            code="invalid_value",
        )
    return tuple(_choice(prompt, index) for prompt in prompts for index in range(n))


def usages_of_prompts(usages: Sequence[Usage], n: int) -> list[Usage]:
    """One for each prompt, of those of its `n` answers: its tokens count once, as the first answer has found them."""
    grouped = [usages[first : first + n] for first in range(0, len(usages), n)]
    return [
        msgspec.structs.replace(answers[0], completion_tokens=sum(usage.completion_tokens for usage in answers))
        for answers in grouped
    ]


def _choice(prompt: GenerateRequest, index: int) -> GenerateRequest:
    seed = prompt.sampling.seed
    return msgspec.structs.replace(
        prompt,
        request_id=RequestId(f"{prompt.request_id}-{index}"),
        sampling=prompt.sampling
        if seed is None
        else msgspec.structs.replace(prompt.sampling, seed=(seed + index) % _NUM_SEEDS),
    )
