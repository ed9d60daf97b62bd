"""How each dialect writes a call, as rules of a grammar in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pagefall.text.replies import hermes, mistral
from pagefall.text.replies.dialects import ToolDialect
from pagefall.text.requests import Tool

_LIKE_DUMPS: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_DEFINITIONS: Final = ("$defs", "definitions")


class Marks:
    """Markers as the grammar has them: a special token by its id, any other text quoted."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special

    def is_special(self, marker: str) -> bool:
        return marker in self._special

    def text(self, marker: str) -> str:
        return f"<[{self._special[marker]}]>" if marker in self._special else quoted(marker)


class CallForm(msgspec.Struct, frozen=True, kw_only=True):
    """`before` and `after` are around all calls, `separator` is between two of them. `rules` say what `call` is.

    `marker` begins every call; None where there is none. `unmarked_rules` say what `unmarked_call` is, the rest of it.
    """

    before: str = ""
    separator: str = ""
    after: str = ""
    rules: tuple[str, ...] = ()
    marker: str | None = None
    unmarked_rules: tuple[str, ...] = ()


def call_form(dialect: ToolDialect, tools: Sequence[Tool], marks: Marks) -> CallForm:
    match dialect:
        case "hermes":
            end = marks.text(hermes.END)
            calls = [f"{quoted(chr(10))} {_object(t, i, 'arguments')} {quoted(chr(10))} {end}" for i, t in _each(tools)]
            return _marked(hermes.BEGIN, marks, calls, _arguments(tools), separator=quoted("\n"))
        case "mistral-named":
            arguments = marks.text(mistral.ARGUMENTS)
            calls = [f"{quoted(tool.name)} {arguments} arguments_{index}" for index, tool in _each(tools)]
            return _marked(mistral.BEGIN, marks, calls, _arguments(tools))
        case "mistral":
            calls = [_object(tool, index, "arguments") for index, tool in _each(tools)]
            return CallForm(
                before=f"{marks.text(mistral.BEGIN)} {quoted('[')}",
                separator=quoted(", "),
                after=quoted("]"),
                rules=(*_rules("call", calls), *_arguments(tools)),
            )
        case "llama3":
            calls = [_object(tool, index, "parameters") for index, tool in _each(tools)]
            return CallForm(separator=quoted("; "), rules=(*_rules("call", calls), *_arguments(tools)))
        case "pythonic":
            calls = [f"{quoted(f'{tool.name}(')} python_{index} {quoted(')')}" for index, tool in _each(tools)]
            rules = [rule for index, tool in _each(tools) for rule in _pythonic_rules(tool, f"python_{index}")]
            return CallForm(
                before=quoted("["),
                separator=quoted(", "),
                after=quoted("]"),
                rules=(*_rules("call", calls), *rules),
            )
        case "qwen3-coder":
            end = f"{quoted('</function>' + chr(10))} {marks.text(hermes.END)}"
            calls = [f"{quoted(f'{chr(10)}<function={t.name}>{chr(10)}')} {_tagged(t)} {end}" for t in tools]
            text = f"tagged_text[lazy]: TEXT {quoted(f'{chr(10)}</parameter>{chr(10)}')}"
            return _marked(hermes.BEGIN, marks, calls, (text,), separator=quoted("\n"))
        case "none":
            raise ValueError("without a dialect there are no calls")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON written as `json.dumps` writes it."""
    return "%json " + json.dumps({**schema, "x-guidance": _LIKE_DUMPS})


def schema_of(tool: Tool) -> dict[str, Any]:
    """Arguments are an object, whatever else the schema says or leaves open."""
    schema = tool.parameters or {"properties": {}, "additionalProperties": False}
    return {**schema, "type": "object"}


def _each(tools: Sequence[Tool]) -> list[tuple[int, Tool]]:
    return list(enumerate(tools))


def _marked(marker: str, marks: Marks, calls: list[str], rules: Sequence[str], *, separator: str = "") -> CallForm:
    unmarked = (*_rules("unmarked_call", calls), *rules)
    return CallForm(
        separator=separator,
        marker=marker,
        rules=(f"call: {marks.text(marker)} unmarked_call", *unmarked),
        unmarked_rules=unmarked,
    )


def _rules(name: str, alternatives: Sequence[str]) -> list[str]:
    names = [f"{name}_{index}" for index in range(len(alternatives))]
    return [f"{name}: {' | '.join(names)}", *(f"{one}: {body}" for one, body in zip(names, alternatives, strict=True))]


def _arguments(tools: Sequence[Tool]) -> tuple[str, ...]:
    return tuple(f"arguments_{index}: {json_rule(schema_of(tool))}" for index, tool in _each(tools))


def _object(tool: Tool, index: int, key: str) -> str:
    head = f'{{"name": {quoted(tool.name)}, "{key}": '
    return f"{quoted(head)} arguments_{index} {quoted('}')}"


def _properties(tool: Tool) -> tuple[dict[str, Any], frozenset[str]]:
    """The schema of each argument by its name, able to stand alone; and which of them there must be."""
    schema = schema_of(tool)
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    properties = schema.get("properties") or {}
    alone = {name: {**part, **shared} if isinstance(part, dict) else {} for name, part in properties.items()}
    required = schema.get("required") or ()
    return alone, frozenset(name for name in required if isinstance(name, str))


def _pythonic_rules(tool: Tool, name: str) -> list[str]:
    """Named arguments, those that must be first; `name_i` is what may follow before the i-th of the others."""
    properties, required = _properties(tool)
    named = {key: f"{quoted(f'{key}=')} {json_rule(part)}" for key, part in properties.items() if key.isidentifier()}
    must = [body for key, body in named.items() if key in required]
    may = [body for key, body in named.items() if key not in required]
    comma = quoted(", ")
    rules = [f'{name}_{len(may)}: ""']
    rules += [f"{name}_{i}: ( {comma} {body} )? {name}_{i + 1}" for i, body in enumerate(may)]
    if must:
        return [f"{name}: {f' {comma} '.join(must)} {name}_0", *rules]
    firsts = [f"{body} {name}_{i + 1}" for i, body in enumerate(may)]
    return [f"{name}: {' | '.join([*firsts, quoted('')])}", *rules]


def _tagged(tool: Tool) -> str:
    properties, required = _properties(tool)
    parts = []
    for name, schema in properties.items():
        end = quoted("\n</parameter>\n")
        value = (
            "tagged_text" if schema.get("type") == "string" and "enum" not in schema else f"{json_rule(schema)} {end}"
        )
        part = f"{quoted(f'<parameter={name}>{chr(10)}')} {value}"
        parts.append(part if name in required else f"( {part} )?")
    return " ".join(parts)
