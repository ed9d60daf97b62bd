"""`GET /cache/tree`: the radix tree's largest branches."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from pagefall.api.engine import Engine
from pagefall.api.json_response import json_response
from pagefall.errors import RequestError
from pagefall.messages import BranchFacts

_DEFAULT_BRANCHES: Final = 40
_MAX_BRANCHES: Final = 200


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A `BranchFacts` with text in place of its head's token ids; None where prompts are redacted.

    A character that the head begins or ends within is left out of `head_text`.
    """

    branch_id: int
    parent_id: int | None
    start_token: int
    num_own_tokens: int
    head_text: str | None
    num_device_pages: int
    num_host_pages: int
    num_stored_pages: int
    num_nodes: int
    num_hits: int
    idle_seconds: float


class TreeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Parents stand before their children. `num_nodes` were looked at; `is_complete`: these were all."""

    branches: tuple[Branch, ...]
    num_nodes: int
    is_complete: bool
    redact_prompts: bool


class Tree:
    """The endpoint."""

    def __init__(self, engine: Engine, *, redact_prompts: bool) -> None:
        self._engine = engine
        self._redact_prompts = redact_prompts

    async def show(self, request: Request) -> Response:
        """`?max_branches=N`, 40 where it is absent."""
        described = await self._engine.describe_cache(max_branches=_max_branches(request.query_params))
        answer = TreeAnswer(
            branches=tuple([await self._branch(facts) for facts in described.branches]),
            num_nodes=described.num_nodes,
            is_complete=described.is_complete,
            redact_prompts=self._redact_prompts,
        )
        return json_response(answer, headers={"cache-control": "no-store"})

    async def _branch(self, facts: BranchFacts) -> Branch:
        text = None if self._redact_prompts else await self._engine.detokenize(facts.head_token_ids)
        return Branch(
            branch_id=facts.branch_id,
            parent_id=facts.parent_id,
            start_token=facts.start_token,
            num_own_tokens=facts.num_own_tokens,
            head_text=None if text is None else text.strip("\N{REPLACEMENT CHARACTER}"),
            num_device_pages=facts.num_device_pages,
            num_host_pages=facts.num_host_pages,
            num_stored_pages=facts.num_stored_pages,
            num_nodes=facts.num_nodes,
            num_hits=facts.num_hits,
            idle_seconds=round(facts.idle_seconds, 3),
        )


def _max_branches(query: QueryParams) -> int:
    """Raises `RequestError` for what is out of range, and for any other parameter."""
    for name in query:
        if name != "max_branches":
            raise RequestError(f"Unknown parameter: '{name}'. The only one is 'max_branches'.", param=name)
    text = query.get("max_branches", str(_DEFAULT_BRANCHES))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:10]) <= _MAX_BRANCHES):
        raise RequestError(
            f"Invalid value for 'max_branches': {text[:100]!r} is not a number from 1 to {_MAX_BRANCHES}.",
            param="max_branches",
            code="invalid_value",
        )
    return int(text)
