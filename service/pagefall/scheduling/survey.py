"""What is known of a prompt's pages when its request starts: cached, evicted, known to others, or new."""

from __future__ import annotations

from typing import Final

import numpy as np

from pagefall.cache.history import Evicted, PrefixHistory, Remembered
from pagefall.cache.keys import page_keys_of_bytes, token_bytes
from pagefall.cache.neighbour import Neighbour, tokens_of
from pagefall.common_tokens import num_common_tokens
from pagefall.messages import Divergence, RequestId, TokenIds
from pagefall.scheduling.request import Request
from pagefall.scheduling.state import SchedulerState
from pagefall.scheduling.trace import Survey

_NUM_LATEST: Final = 32
"""A prompt whose very first page is unknown is compared with so many of the latest ones."""

_TOKENS_BEFORE: Final = 16
_TOKENS_AFTER: Final = 32
"""How much of the other path is kept around the point where a prompt left it."""

_NO_TOKENS: Final[TokenIds] = np.empty(0, dtype=np.uint32)


def survey(state: SchedulerState, request: Request, *, now: float) -> None:
    """Puts a `Survey` into the request's trace, and the request into the history. Once, when it first starts.

    O(pages of the prompt); without a history there is nothing to find out.
    """
    history = state.history
    if history is None:
        return
    absorb(state, None, now=now)
    prompt = request.submit.token_ids
    neighbour = state.cache.neighbour(request.root, prompt)
    evicted, last_key = _evicted_behind(state, history, neighbour, token_bytes(prompt))
    num_known_pages = neighbour.num_pages + len(evicted)
    divergence = _divergence(state, history, request, neighbour, num_known_pages, last_key)
    num_elsewhere = 0
    if num_known_pages < request.num_prompt_tokens // state.page_size:
        num_elsewhere = state.cache.num_pages_elsewhere(request.root, prompt)
    trace = request.trace
    trace.survey = Survey(
        num_tree_pages=neighbour.num_pages,
        evicted=evicted,
        num_elsewhere_pages=num_elsewhere,
        has_next=divergence is not None and divergence.has_other,
        divergence=divergence,
    )
    trace.remembered = history.begin(request.request_id, request.root, prompt)
    history.own(trace.remembered, request.root)
    history.own(trace.remembered, last_key)


def absorb(state: SchedulerState, request: Request | None, *, now: float) -> None:
    """Brings the history, and the changes to be published, up to date.

    What is new on the device since the last call is of `request`.
    """
    changes = state.cache.take_changes()
    state.changes += changes
    if state.history is not None:
        owner = None if request is None else request.trace.remembered
        state.history.absorb(changes, now=now, owner=owner)


def remember_answer(state: SchedulerState, request: Request) -> None:
    """The request gives its pages up: the next turn of a conversation begins with what it has computed."""
    if state.history is not None and request.trace.remembered is not None:
        state.history.extend(request.trace.remembered, request.token_ids)


def _evicted_behind(
    state: SchedulerState, history: PrefixHistory, neighbour: Neighbour, tokens: bytes
) -> tuple[tuple[Evicted, ...], bytes]:
    """The fates of the pages behind those in the tree, up to the first that has none; and the key of the last known."""
    page_bytes = 4 * state.page_size
    evicted: list[Evicted] = []
    key = neighbour.key
    for start in range(neighbour.num_pages * page_bytes, len(tokens) - page_bytes + 1, page_bytes):
        [next_key] = page_keys_of_bytes(key, tokens[start : start + page_bytes], page_bytes)
        fate = history.fate(next_key)
        if fate is None:
            break
        evicted.append(fate)
        key = next_key
    return tuple(evicted), key


def _divergence(
    state: SchedulerState,
    history: PrefixHistory,
    request: Request,
    neighbour: Neighbour,
    num_known_pages: int,
    last_key: bytes,
) -> Divergence | None:
    """Where the prompt leaves the path that shares most tokens with it. None: it does not, or there is no such path."""
    start = num_known_pages * state.page_size
    prompt = request.submit.token_ids
    rest = prompt[start:]
    best: TokenIds = _NO_TOKENS
    most, is_cached = -1, False
    owner: RequestId | None = None
    if num_known_pages == neighbour.num_pages and neighbour.other is not None:
        best = tokens_of(neighbour.other)
        most, is_cached = num_common_tokens(rest, best), True
    for other in _candidates(history, request.root, last_key):
        theirs = other.token_ids[start:]
        num_common = num_common_tokens(rest, theirs)
        if num_common > most or (num_common == most and owner is None):
            is_cached = is_cached and num_common == most
            best, most, owner = theirs, num_common, other.request_id
    if most < 0:
        return None
    token_index = start + most
    if token_index >= len(prompt) or token_index == 0:
        return None
    window_start = max(0, token_index - _TOKENS_BEFORE)
    behind = best[most : most + _TOKENS_AFTER]
    return Divergence(
        token_index=token_index,
        has_other=len(behind) > 0,
        is_cached=is_cached,
        window_start=window_start,
        other_token_ids=(
            *prompt[window_start:token_index].tolist(),
            *behind.tolist(),
        ),
        other_request_id=owner,
    )


def _candidates(history: PrefixHistory, root: bytes, last_key: bytes) -> list[Remembered]:
    owner = history.owner(last_key)
    candidates = [] if owner is None or not len(owner.token_ids) else [owner]
    return [*candidates, *history.latest(root, _NUM_LATEST)] if last_key == root else candidates
