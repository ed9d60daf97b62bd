"""The grammar of an answer that must call tools, or whose calls must have valid arguments.

In llguidance's dialect of Lark. Arguments are written as `json.dumps` writes them, so that the chat template, which
does the same, gives the same tokens when the call comes back as history.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark
from pagefall.text.grammar import WHITESPACE, grammar_text
from pagefall.text.replies.call_forms import CallForm, Marks, call_form, quoted
from pagefall.text.replies.dialects import ReplyFormat
from pagefall.text.replies.policy import ToolPolicy

PARAM: Final = "tools"

_HEAD: Final = ("%llguidance {}", "TEXT: /(.|\\n)*/")


def tool_constraint(
    format: ReplyFormat, policy: ToolPolicy, answer: Constraint | None = None, *, may_think: bool = True
) -> Constraint | None:
    """What the answer must look like for `policy`; `answer` is what it must look like where it calls nothing.

    None where neither asks for anything. `may_think` False: the request has switched thoughts off. Raises
    `RequestError` naming `tool_choice` where the model's dialect has no form to force, and the field of `answer` where
    both cannot be had.
    """
    is_strict = any(tool.strict for tool in policy.tools)
    marks = Marks(dict(format.special_tokens))
    can_think = format.thinking != "none" and may_think
    if policy.mode == "none" or not policy.tools:
        return _answer_alone(answer, marks) if can_think else answer
    if policy.mode == "auto" and answer is None and not is_strict:
        return None
    if format.tools == "none":
        if policy.mode == "auto":
            return _answer_alone(answer, marks) if can_think else answer
        raise RequestError(
            "This server was started with --tool-call-parser none and cannot force a call: leave out 'tool_choice'.",
            param="tool_choice",
            code="unsupported_value",
        )
    form = call_form(format.tools, policy.tools, marks)
    if policy.mode == "auto" and answer is None:
        return _free(form, marks, parallel=policy.parallel)
    more = f" ( {form.separator} call )*" if policy.parallel else ""
    rules = [f"calls: {form.before} call{more} {form.after}", *form.rules]
    if policy.mode == "required":
        return _reply("calls", rules, marks, can_think=can_think)
    assert answer is not None
    return _reply("( calls | answer )", [f"answer: {_answer(answer)}", *rules], marks, can_think=can_think)


def _answer_alone(answer: Constraint | None, marks: Marks) -> Constraint | None:
    """JSON, and a thought before it; what has another form begins at once."""
    match answer:
        case AnyJson():
            param = "response_format"
        case JsonSchema(param=param):
            pass
        case _:
            return answer
    return _reply("answer", [f"answer: {_answer(answer)}"], marks, can_think=True, param=param)


def _reply(body: str, rules: Sequence[str], marks: Marks, *, can_think: bool, param: str = PARAM) -> Lark:
    """`body`, and before it a thought: one that the prompt has opened must end, any other is as the model likes."""
    if not can_think:
        return Lark(grammar=_text(f"start: {body}", *rules), param=param)
    return Lark(
        grammar=_text(f"start: thought? {body}", *rules, *_thought(marks, is_opened=False)),
        opened=_text(f"start: thought {body}", *rules, *_thought(marks, is_opened=True)),
        param=param,
    )


def _free(form: CallForm, marks: Marks, *, parallel: bool) -> Constraint | None:
    """Text as the model likes it, in which each call is valid. It takes a marker that begins every call; in other
    dialects arguments are as good as the model.
    """
    if form.marker is None:
        return None
    start = f"start: marked_call{'*' if parallel else '?'} TEXT"
    if marks.is_special(form.marker):
        marked = [f"marked_call: TEXT {marks.text(form.marker)} unmarked_call"]
    else:
        marked = ["marked_call: trigger unmarked_call", f"trigger[lazy]: TEXT {quoted(form.marker)}"]
    grammar = _text(start, *marked, *form.unmarked_rules)
    return Lark(grammar=grammar, opened=grammar, param=PARAM)  # a thought is text like any other


def _thought(marks: Marks, *, is_opened: bool) -> list[str]:
    """One that is opened may have the tag once more, as some models write it all the same."""
    if not marks.is_special("</think>"):
        begin = "" if is_opened else "<think>"
        return ["thought: thought_text /\\n*/", rf"thought_text[lazy]: /{begin}(.|\n)*<\/think>/"]
    begin = marks.text("<think>")
    if is_opened:
        begin = f"{begin}?" if marks.is_special("<think>") else ""
    return [f"thought: {begin} TEXT {marks.text('</think>')} /\\n*/"]


def _text(*rules: str) -> str:
    return "\n".join([*_HEAD, *rules]) + "\n"


def _answer(constraint: Constraint) -> str:
    """JSON, with space between its parts as where it stands alone."""
    match constraint:
        case AnyJson():
            schema: dict[str, Any] | bool = {"type": "object"}
        case JsonSchema(schema=schema):
            pass
        case _:
            raise RequestError(
                f"'{constraint.param}' and 'tools' cannot be had together: leave one of them out, or ask for JSON with "
                "'response_format'.",
                param=constraint.param,
                code="unsupported_value",
            )
    grammar_text(constraint)  # refuses by its field what is too large, too deep, or false
    keywords = schema if isinstance(schema, dict) else {}
    return "%json " + json.dumps({"x-guidance": {"whitespace_pattern": WHITESPACE}, **keywords})
