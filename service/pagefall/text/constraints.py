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
    """Text of a context-free grammar, in llguidance's dialect of Lark; also how tool calls are put into a form."""

    grammar: str
    param: str = "grammar"


Constraint: TypeAlias = AnyJson | JsonSchema | Regex | Lark
