"""A constraint as the text of a grammar that llguidance compiles.

Pure, and quick for anything up to the sizes below: whether a grammar compiles is for `grammars.Grammars` to find out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, assert_never

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex

MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_REGEX_BYTES: Final = 64 * 1024
MAX_LARK_BYTES: Final = 512 * 1024
"""The tools of a request become one grammar, schemas and all."""

MAX_GBNF_BYTES: Final = 32 * 1024
"""Its conversion is Python."""

WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,64}"
"""Between the parts of a JSON text. llguidance sets no upper bound; a small model then writes spaces for ever."""


def grammar_text(constraint: Constraint) -> str:
    """The grammar in llguidance's JSON form. Equal constraints have equal texts.

    Raises `RequestError` naming `constraint.param` for what is too large, and for a GBNF that cannot be converted.
    """
    match constraint:
        case AnyJson():
            return _json_grammar({"type": "object"}, "response_format")
        case JsonSchema():
            return _json_grammar(constraint.schema, constraint.param)
        case Regex():
            _refuse_large(constraint.pattern, MAX_REGEX_BYTES, "pattern", constraint.param)
            return LLMatcher.grammar_from_regex(constraint.pattern)
        case Lark():
            return LLMatcher.grammar_from_lark(_as_lark(constraint))
        case _:
            assert_never(constraint)


def choice(texts: Sequence[str], *, param: str) -> Lark:
    """One of `texts`, which are not empty, and nothing around it."""
    # Lark writes literals as JSON does. One terminal, as a parser's row holds 2,000 alternatives at most.
    literals = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return Lark(grammar=f"start: CHOICE\nCHOICE: {literals}", param=param)


def unusable(param: str, reason: str) -> RequestError:
    """The 400 for a constraint that cannot be used."""
    return RequestError(
        f"Invalid value for '{param}': this cannot be used to constrain the answer: {reason.rstrip('. ')}.",
        param=param,
        code="invalid_value",
    )


def _json_grammar(schema: dict[str, Any] | bool, param: str) -> str:
    if schema is False:
        raise unusable(param, "no text satisfies the schema false")
    schema = {} if schema is True else schema
    try:
        text = msgspec.json.encode(schema).decode()
    except RecursionError as error:
        raise unusable(param, "the schema is nested too deeply") from error
    _refuse_large(text, MAX_SCHEMA_BYTES, "schema", param)
    options: Any = None if "x-guidance" in schema else {"whitespace_pattern": WHITESPACE}
    try:
        return LLMatcher.grammar_from_json_schema(text, defaults=options)
    except ValueError as error:  # numbers that Rust's JSON does not know, nesting beyond 128
        raise unusable(param, str(error)) from error


def _as_lark(constraint: Lark) -> str:
    """The grammar itself, or what a GBNF (llama.cpp's EBNF, which xgrammar and SGLang take too) becomes."""
    _refuse_large(constraint.grammar, MAX_LARK_BYTES, "grammar", constraint.param)
    if "::=" not in constraint.grammar:
        return constraint.grammar
    _refuse_large(constraint.grammar, MAX_GBNF_BYTES, "grammar", constraint.param)
    try:
        return str(any_to_lark(constraint.grammar))
    except Exception as error:  # its parser raises whatever a bad grammar leads to
        raise unusable(constraint.param, f"no valid GBNF: {str(error)[:200]}") from error


def _refuse_large(text: str, most: int, what: str, param: str) -> None:
    num_bytes = len(text.encode(errors="surrogatepass"))
    if num_bytes > most:
        raise RequestError(
            f"Invalid value for '{param}': the {what} takes {num_bytes} bytes, this server compiles at most {most}.",
            param=param,
            code="string_above_max_length",
        )
