"""What an answer must look like. Validated at the edge; compiled to a grammar off the loop's thread."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class AnyJson(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """JSON that validates against `schema`. `param` names the field it came in, for errors."""

    schema: dict[str, Any] | bool
    param: str = "response_format"


class Regex(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """Text that matches as a whole."""

    pattern: str
    param: str = "regex"


class Lark(msgspec.Struct, frozen=True, kw_only=True, tag="lark"):
    """Text of a context-free grammar, in llguidance's dialect of Lark; also how tool calls are put into a form.

    `opened`: the grammar where the prompt ends within a thought, which the answer then goes on with. None: the same,
    and the answer has no place for a thought.
    """

    grammar: str
    param: str = "grammar"
    opened: str | None = None


Constraint: TypeAlias = AnyJson | JsonSchema | Regex | Lark
