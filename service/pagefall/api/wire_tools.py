"""Tools of a chat request on the wire: which there are, and which may or must be called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pagefall.api.strict_schema import check_strict
from pagefall.errors import RequestError
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import Tool, ToolCall
from pagefall.text.tool_schema import canonical_schema

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MAX_TOOLS: Final = 1024

_MAX_DEPTH: Final = 100
"""Objects and lists within each other in a schema. llguidance reads 128; templates and JSON writers recurse, too."""


class WireFunction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class WireTool(msgspec.Struct, kw_only=True):
    """Other types of tools have other fields: they are refused by their type."""

    type: str
    function: WireFunction | None = None


class NamedFunction(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    type: str
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: str
    tools: list[NamedTool]


class WireToolChoice(msgspec.Struct, kw_only=True):
    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class WireCalledFunction(msgspec.Struct, kw_only=True):
    """`arguments` is JSON text; some clients send the object itself."""

    name: str
    arguments: str | dict[str, Any] | None = None


class WireToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: WireCalledFunction | None = None


def tools_of(wire: Sequence[WireTool], path: str = "tools") -> tuple[Tool, ...]:
    """Raises `RequestError` naming the field of a tool that is no function, or whose name or schema cannot be."""
    tools: list[Tool] = []
    for index, tool in enumerate(wire):
        if tool.type != "function":
            raise RequestError(
                f"Unsupported value: '{path}[{index}].type' must be 'function', this server has no tools of the type "
                f"'{tool.type[:100]}'.",
                param=f"{path}[{index}].type",
                code="unsupported_value",
            )
        if tool.function is None:
            raise _missing(f"{path}[{index}].function")
        tools.append(function_of(tool.function, f"{path}[{index}].function"))
    check_tools(tools, path)
    return tuple(tools)


def functions_of(wire: Sequence[WireFunction]) -> tuple[Tool, ...]:
    """The same for the older field `functions`."""
    tools = [function_of(function, f"functions[{index}]") for index, function in enumerate(wire)]
    check_tools(tools, "functions")
    return tuple(tools)


def function_of(wire: WireFunction, path: str) -> Tool:
    return tool_of(
        wire.name, description=wire.description, parameters=wire.parameters, strict=bool(wire.strict), path=path
    )


def tool_of(name: str, *, description: str | None, parameters: dict[str, Any] | None, strict: bool, path: str) -> Tool:
    """A tool with its schema in canonical order. Raises `RequestError` naming a field of `path`."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"Invalid value for '{path}.name': a name has 1 to 128 letters, digits, underscores, dashes, dots, colons "
            "and slashes.",
            param=f"{path}.name",
            code="invalid_value",
        )
    _check_parameters(parameters or {}, name, f"{path}.parameters")
    if strict and parameters:
        check_strict(parameters, name=name, param=f"{path}.parameters")
    return Tool(
        name=name,
        description=description,
        parameters=canonical_schema(parameters) if parameters else None,
        strict=strict,
    )


def _check_parameters(schema: dict[str, Any], name: str, param: str) -> None:
    """Raises `RequestError` unless `schema` is that of an object whose arguments can be told from it, not too deep."""
    reason = None
    if _depth(schema) > _MAX_DEPTH:
        reason = f"it is nested deeper than {_MAX_DEPTH} levels"
    elif (kind := schema.get("type", "object")) != "object":
        reason = f"schema must be a JSON Schema of 'type: \"object\"', got {json.dumps(kind)[:100]}"
    elif not isinstance(schema.get("properties"), dict | None):
        reason = "'properties' must be an object"
    elif not isinstance(schema.get("required"), list | None):
        reason = "'required' must be an array"
    if reason is not None:
        raise RequestError(
            f"Invalid schema for function '{name}': {reason}.", param=param, code="invalid_function_parameters"
        )


def _depth(value: object) -> int:
    """How many objects and lists are within each other, without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def check_tools(tools: Sequence[Tool], path: str) -> None:
    """Raises `RequestError` for two tools of one name, and for too many."""
    if len(tools) > _MAX_TOOLS:
        raise RequestError(f"'{path}' has {len(tools)} tools: send {_MAX_TOOLS} at most.", param=path)
    names = [tool.name for tool in tools]
    if twice := next((name for index, name in enumerate(names) if name in names[:index]), None):
        raise RequestError(f"'{path}' has two tools with the name '{twice}'.", param=path, code="invalid_value")


def tool_policy(
    tools: tuple[Tool, ...], choice: str | WireToolChoice | None, *, parallel: bool | None, path: str = "tool_choice"
) -> ToolPolicy:
    """Raises `RequestError` naming a field of `path` where `choice` is none that there is."""
    everything = ToolPolicy(tools=tools, mode="auto" if tools else "none", parallel=parallel is not False)
    match choice:
        case None | "auto":
            return everything
        case "none":
            return msgspec.structs.replace(everything, mode="none")
        case "required":
            return _required(everything, path)
        case WireToolChoice(type="function", function=NamedFunction(name=name)):
            named = ToolPolicy(tools=_named([name], tools, f"{path}.function.name"), mode="required", parallel=False)
            return _required(named, path)
        case WireToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=allowed)):
            return _allowed(everything, mode, allowed, f"{path}.allowed_tools")
        case _:
            raise RequestError(
                f"Invalid value for '{path}': it is 'auto', 'none', 'required', "
                '{"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", ...}.',
                param=path,
                code="invalid_value",
            )


def tool_calls_of(wire: Sequence[WireToolCall], path: str) -> tuple[ToolCall, ...]:
    """Calls in an earlier answer. Raises `RequestError` naming the field of one that is no function's."""
    calls: list[ToolCall] = []
    for index, call in enumerate(wire):
        if call.type != "function" or call.function is None:
            raise RequestError(
                f"Unsupported value: '{path}[{index}]' must be a call of the type 'function', with a 'function'.",
                param=f"{path}[{index}]",
                code="unsupported_value",
            )
        calls.append(ToolCall(call_id=call.id, name=call.function.name, arguments=arguments_of(call.function)))
    return tuple(calls)


def arguments_of(function: WireCalledFunction) -> str:
    match function.arguments:
        case str(text):
            return text
        case None:
            return "{}"
        case arguments:
            return arguments_text(arguments)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """As models write them, and the grammar of calls: so a call comes back as the text that is in the cache."""
    return json.dumps(arguments, ensure_ascii=False)


def _allowed(everything: ToolPolicy, mode: str, allowed: Sequence[NamedTool], path: str) -> ToolPolicy:
    if mode not in ("auto", "required"):
        raise RequestError(f"Invalid value for '{path}.mode': it is 'auto' or 'required'.", param=f"{path}.mode")
    names = [tool.function.name for tool in allowed if tool.function is not None]
    policy = msgspec.structs.replace(everything, tools=_named(names, everything.tools, f"{path}.tools"))
    return _required(policy, path) if mode == "required" else policy


def _required(policy: ToolPolicy, path: str) -> ToolPolicy:
    if not policy.tools:
        raise RequestError(f"'{path}' asks for a call, but there are no 'tools'.", param=path, code="invalid_value")
    return msgspec.structs.replace(policy, mode="required")


def _named(names: Sequence[str], tools: tuple[Tool, ...], path: str) -> tuple[Tool, ...]:
    known = {tool.name: tool for tool in tools}
    if unknown := next((name for name in names if name not in known), None):
        raise RequestError(
            f"Invalid value for '{path}': '{unknown[:100]}' is not among the tools of the request.",
            param=path,
            code="invalid_value",
        )
    return tuple(known[name] for name in dict.fromkeys(names))


def _missing(path: str) -> RequestError:
    return RequestError(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
