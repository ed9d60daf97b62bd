"""Variables of the chat template that have fields of their own in the endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_effort(kwargs: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """`kwargs`, which win, and how much the model should think; `none` also switches its thinking off.

    `reasoning_effort`, `enable_thinking` and `thinking` are what templates call it.
    """
    told: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        told |= {"enable_thinking": False, "thinking": False}
    return {**told, **(kwargs or {})}


def may_think(kwargs: Mapping[str, Any]) -> bool:
    """Whether the variables leave the model's thinking on."""
    return kwargs.get("enable_thinking") is not False and kwargs.get("thinking") is not False
