"""Which tools an answer may call, and must."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagefall.text.requests import Tool


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`tools` are those that may be called; the prompt may show more. `mode`: `none` calls nothing whatever the model
    writes, `required` is at least one call and nothing else. `parallel`: more than one.
    """

    tools: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "none"
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


NO_TOOLS = ToolPolicy()
