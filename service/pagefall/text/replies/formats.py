"""How a model writes calls and thoughts: chosen once for a server, by flags or from the model's chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import msgspec

from pagefall.config import ReasoningParserName, ToolCallParserName
from pagefall.text.constraints import Constraint, Lark
from pagefall.text.replies import hermes, llama3, mistral, pythonic, qwen3_coder
from pagefall.text.replies.call_object import Calls
from pagefall.text.replies.content import ContentOnly, FirstCallOnly
from pagefall.text.replies.dialects import ReplyFormat, Thinking, ToolDialect
from pagefall.text.replies.parts import ReplyParser
from pagefall.text.replies.policy import NO_TOOLS, ToolPolicy
from pagefall.text.replies.thinking import ThinkingParser, is_thinking

_MARKERS: Final[dict[ToolDialect, tuple[str, ...]]] = {
    "hermes": (hermes.BEGIN, hermes.END),
    "llama3": (llama3.PYTHON_TAG,),
    "mistral": (mistral.BEGIN,),
    "mistral-named": (mistral.BEGIN, mistral.ARGUMENTS, mistral.CALL_ID),
    "pythonic": (pythonic.BEGIN, pythonic.END),
    "qwen3-coder": (hermes.BEGIN, hermes.END),
    "none": (),
}


def reply_format(
    tools: ToolCallParserName,
    thinking: ReasoningParserName,
    *,
    chat_template: str | None,
    special_token_id: Callable[[str], int | None],
) -> ReplyFormat:
    """`special_token_id` tells the id of a special token by its spelling, None where the tokenizer has none such."""
    template = chat_template or ""
    dialect = _dialect(tools, template)
    thought = _thinking(thinking, template)
    markers = (*_MARKERS[dialect], *(() if thought == "none" else ("<think>", "</think>")))
    found = ((marker, special_token_id(marker)) for marker in markers)
    return ReplyFormat(
        tools=dialect,
        thinking=thought,
        special_tokens=tuple((marker, token_id) for marker, token_id in found if token_id is not None),
    )


def parser(
    format: ReplyFormat,
    policy: ToolPolicy = NO_TOOLS,
    *,
    constraint: Constraint | None = None,
    prompt_tail: str = "",
    new_call_id: Callable[[], str] | None = None,
) -> ReplyParser:
    """A parser of one answer. `constraint`: the request's, which may leave no room for thoughts. `prompt_tail`: the end
    of the prompt's text (see `TextDelta.prompt_tail`).
    """
    calling = _call_parser(format.tools, policy, new_call_id)
    if format.thinking == "none":
        return calling
    may_think = constraint is None or (isinstance(constraint, Lark) and constraint.opened is not None)
    return ThinkingParser(calling, begins="thinking" if may_think and is_opened(format, prompt_tail) else "open")


def is_opened(format: ReplyFormat, prompt_tail: str) -> bool:
    """Whether an answer behind `prompt_tail` begins within a thought."""
    match format.thinking:
        case "none":
            return False
        case "deepseek-r1":
            return not prompt_tail.rstrip().endswith("</think>")
        case "qwen3":
            return is_thinking(prompt_tail)
        case _:
            assert_never(format.thinking)


def constraint_behind(prompt_tail: str, constraint: Constraint | None, format: ReplyFormat) -> Constraint | None:
    """What `constraint` asks of an answer behind `prompt_tail`."""
    if isinstance(constraint, Lark) and constraint.opened is not None and is_opened(format, prompt_tail):
        return msgspec.structs.replace(constraint, grammar=constraint.opened)
    return constraint


def kept_special_token_ids(format: ReplyFormat, policy: ToolPolicy) -> frozenset[int]:
    """For `GenerateRequest`: the special tokens without whose text the parser would see no marker."""
    is_read = (policy.mode != "none" and policy.tools) or format.thinking != "none"
    return frozenset(token_id for _, token_id in format.special_tokens) if is_read else frozenset()


def _call_parser(dialect: ToolDialect, policy: ToolPolicy, new_call_id: Callable[[], str] | None) -> ReplyParser:
    if policy.mode == "none" or not policy.tools:
        return ContentOnly()
    calls = _calls(dialect, policy, new_call_id)
    reader: ReplyParser
    match dialect:
        case "none":
            return ContentOnly()
        case "hermes":
            reader = hermes.HermesParser(calls)
        case "llama3":
            reader = llama3.Llama3Parser(calls)
        case "mistral" | "mistral-named":
            reader = mistral.MistralParser(calls)
        case "pythonic":
            reader = pythonic.PythonicParser(calls)
        case "qwen3-coder":
            schemas = {tool.name: tool.parameters or {} for tool in policy.tools}
            reader = qwen3_coder.Qwen3CoderParser(calls, schemas)
        case _:
            assert_never(dialect)
    return reader if policy.parallel else FirstCallOnly(reader)


def _calls(dialect: ToolDialect, policy: ToolPolicy, new_call_id: Callable[[], str] | None) -> Calls:
    """Where any JSON or list could be meant, only the names of tools make it a call. Behind a marker every name does:
    who asked is told, and may tell the model that there is no such tool.
    """
    is_marked = dialect not in ("llama3", "pythonic")
    names = None if is_marked else policy.names
    if new_call_id is not None:
        return Calls(new_call_id, names)
    return Calls(mistral.new_mistral_id, names) if dialect.startswith("mistral") else Calls(names=names)


def _dialect(name: ToolCallParserName, template: str) -> ToolDialect:
    match name:
        case "auto":
            return _dialect_of(template)
        case "qwen":
            return "hermes"
        case "mistral":
            return "mistral-named" if mistral.ARGUMENTS in template else "mistral"
        case _:
            return name


def _dialect_of(template: str) -> ToolDialect:
    """By what the template writes for the calls of earlier turns. Hermes' is what models without one are told."""
    if qwen3_coder.FUNCTION in template and "<parameter=" in template:
        return "qwen3-coder"
    if hermes.BEGIN in template:
        return "hermes"
    if mistral.BEGIN in template:
        return _dialect("mistral", template)
    if pythonic.BEGIN in template or "func_name1(params_name1=" in template:
        return "pythonic"
    if "<|start_header_id|>" in template and "tools" in template:
        return "llama3"
    return "hermes"


def _thinking(name: ReasoningParserName, template: str) -> Thinking:
    if name != "auto":
        return name
    if "</think>" not in template and "<think>" not in template:
        return "none"
    return "deepseek-r1" if "<｜Assistant｜>" in template and "thinking" not in template else "qwen3"
