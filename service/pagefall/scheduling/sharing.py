"""Of several requests with one common head, one computes it: the others wait until it is cached."""

from __future__ import annotations

from collections.abc import Iterable

from pagefall.common_tokens import num_common_tokens
from pagefall.scheduling.request import Awaited, Prefilling, Request
from pagefall.scheduling.running import RunningTable


def find_shared_prefill(
    request: Request, num_matched: int, prefills: Iterable[Prefilling], *, page_size: int
) -> Awaited | None:
    """The prefill that will have cached the longest head of the request, if that is more than `num_matched` tokens.

    `num_matched` is what the cache holds already, a multiple of `page_size`. One page compared tells most prefills
    apart: they leave the request's path there, or long before.
    """
    num_usable = (request.num_tokens - 1) // page_size * page_size  # the last token is always computed
    if num_matched >= num_usable:
        return None
    token_ids = request.token_ids
    page = slice(num_matched, num_matched + page_size)
    wanted = token_ids[page].tobytes()
    best = None
    for prefill in prefills:
        other = prefill.request
        if other.root != request.root or other.token_ids[page].tobytes() != wanted:
            continue
        num_common = num_common_tokens(token_ids[:num_usable], other.token_ids) // page_size * page_size
        if num_common > (num_matched if best is None else best.num_tokens):
            best = Awaited(prefill, num_common)
    return best


def is_under_way(awaited: Awaited, running: RunningTable) -> bool:
    """False once the tokens are cached, or the request that computed them has ended or was preempted."""
    return awaited.prefill in running and awaited.prefill.num_computed < awaited.num_tokens
