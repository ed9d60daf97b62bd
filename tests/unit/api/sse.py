"""Reads server-sent events strictly."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a complete stream, without the `[DONE]` that must end it."""
    *blocks, done, empty = response.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [parse(block) for block in blocks]


def parse(block: str) -> dict[str, Any]:
    assert block.startswith("data: ")
    assert "\n" not in block
    event = msgspec.json.decode(block.removeprefix("data: "))
    assert isinstance(event, dict)
    return event
