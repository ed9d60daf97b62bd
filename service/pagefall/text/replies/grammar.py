"""The grammar of an answer that must call tools, or whose calls must have valid arguments.

In llguidance's dialect of Lark. Arguments are written as `json.dumps` writes them, so that the chat template, which
does the same, gives the same tokens when the call comes back as history.
"""

from __future__ import annotations

from typing import Final

from pagefall.errors import RequestError
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark
from pagefall.text.replies.call_forms import CallForm, Marks, call_form, json_rule, quoted
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
    if policy.mode == "none" or not policy.tools:
        return answer
    if policy.mode == "auto" and answer is None and not is_strict:
        return None
    if format.tools == "none":
        if policy.mode == "auto":
            return answer
        raise RequestError(
            "This server was started with --tool-call-parser none and cannot force a call: leave out 'tool_choice'.",
            param="tool_choice",
            code="unsupported_value",
        )
    marks = Marks(dict(format.special_tokens))
    form = call_form(format.tools, policy.tools, marks)
    if policy.mode == "auto" and answer is None:
        return _free(form, marks, parallel=policy.parallel)
    thought = "thought? " if format.thinking != "none" and may_think else ""
    if policy.mode == "required":
        start = [f"start: {thought}calls"]
    else:
        assert answer is not None
        start = [f"start: {thought}( calls | answer )", f"answer: {_answer(answer)}"]
    if thought:
        start += _thought(marks)
    more = f" ( {form.separator} call )*" if policy.parallel else ""
    return _lark(*start, f"calls: {form.before} call{more} {form.after}", *form.rules)


def _free(form: CallForm, marks: Marks, *, parallel: bool) -> Constraint | None:
    """Text as the model likes it, in which each call is valid. It takes a marker that begins every call; in other
    dialects arguments are as good as the model.
    """
    if form.marker is None:
        return None
    start = f"start: marked_call{'*' if parallel else '?'} TEXT"
    if marks.is_special(form.marker):
        return _lark(start, f"marked_call: TEXT {marks.text(form.marker)} unmarked_call", *form.unmarked_rules)
    return _lark(
        start,
        "marked_call: trigger unmarked_call",
        f"trigger[lazy]: TEXT {quoted(form.marker)}",
        *form.unmarked_rules,
    )


def _thought(marks: Marks) -> list[str]:
    """Its end is all that is certain of a thought, since the template may have opened it. It does not begin as calls
    do: else a call would be read as a thought that never ends.
    """
    if not marks.is_special("</think>"):
        return ["thought: thought_text /\\n*/", r"thought_text[lazy]: /((<think>|[^<\[{])(.|\n)*)?<\/think>/"]
    begin = f"{marks.text('<think>')}?" if marks.is_special("<think>") else ""
    return [
        f"thought: {begin} THOUGHT_TEXT {marks.text('</think>')} /\\n*/",
        r"THOUGHT_TEXT: /([^<\[{](.|\n)*)?/",
    ]


def _lark(*rules: str) -> Lark:
    return Lark(grammar="\n".join([*_HEAD, *rules]) + "\n", param=PARAM)


def _answer(constraint: Constraint) -> str:
    match constraint:
        case AnyJson():
            return json_rule({"type": "object"})
        case JsonSchema(schema=schema):
            return json_rule(schema)
        case _:
            raise RequestError(
                f"'{constraint.param}' and 'tools' cannot be had together: leave one of them out, or ask for JSON with "
                "'response_format'.",
                param=constraint.param,
                code="unsupported_value",
            )
