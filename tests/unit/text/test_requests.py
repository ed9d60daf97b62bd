from __future__ import annotations

import pytest

from pagefall.errors import RequestError
from pagefall.text.requests import resolve_max_tokens


def resolve(max_tokens: int | None, num_prompt_tokens: int) -> int:
    return resolve_max_tokens(
        max_tokens=max_tokens, num_prompt_tokens=num_prompt_tokens, context_length=100, param="prompt"
    )


def test_no_limit_means_the_rest_of_the_context() -> None:
    assert resolve(None, 40) == 60


def test_a_limit_that_just_fits_is_kept() -> None:
    assert resolve(60, 40) == 60


@pytest.mark.parametrize(("max_tokens", "num_prompt_tokens"), [(61, 40), (1, 100), (None, 100), (None, 5000)])
def test_what_passes_the_context_is_refused_with_the_numbers(max_tokens: int | None, num_prompt_tokens: int) -> None:
    with pytest.raises(RequestError, match=f"100 tokens.*{num_prompt_tokens}") as raised:
        resolve(max_tokens, num_prompt_tokens)
    assert (raised.value.code, raised.value.param, raised.value.status) == ("context_length_exceeded", "prompt", 400)


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        resolve(5, 0)
