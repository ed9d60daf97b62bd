from __future__ import annotations

import json
from typing import Any

import llguidance
import llguidance.hf
import pytest
from transformers import AutoTokenizer

from pagefall.errors import RequestError
from pagefall.model.embedded import ensure_embedded
from pagefall.text.constraints import AnyJson, Constraint, JsonSchema, Lark, Regex
from pagefall.text.replies.dialects import ReplyFormat, ToolDialect
from pagefall.text.replies.formats import constraint_behind, parser
from pagefall.text.replies.grammar import tool_constraint
from pagefall.text.replies.parts import Content, Reasoning, ToolCallStart
from pagefall.text.replies.policy import NO_TOOLS, ToolPolicy
from pagefall.text.requests import Tool

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"$ref": "#/$defs/u"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"u": {"enum": ["u", 2]}},
}
TOOLS = (Tool(name="get", parameters=SCHEMA, strict=True), Tool(name="ping"))
REQUIRED = ToolPolicy(tools=TOOLS, mode="required")
AUTO = ToolPolicy(tools=TOOLS, mode="auto")

CALLS: dict[ToolDialect, tuple[str, str]] = {
    "hermes": (
        '<tool_call>\n{"name": "get", "arguments": {"a": 1, "b": "<x>"}}\n</tool_call>',
        '\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
    ),
    "llama3": ('{"name": "get", "parameters": {"a": 1, "b": "x", "c": 2}}', '; {"name": "ping", "parameters": {}}'),
    "mistral": ('[TOOL_CALLS][{"name": "get", "arguments": {"a": 1, "b": "x"}}', ', {"name": "ping", "arguments": {}}'),
    "mistral-named": ('[TOOL_CALLS]get[ARGS]{"a": 1, "b": "x"}', "[TOOL_CALLS]ping[ARGS]{}"),
    "pythonic": ('[get(a=1, b="x", c="u")', ", ping()"),
    "qwen3-coder": (
        "<tool_call>\n<function=get>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\ny\n</parameter>\n</function>\n</tool_call>",
        "\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    ),
}
ENDS: dict[ToolDialect, str] = {"mistral": "]", "pythonic": "]"}


class Judge:
    """Whether a text is one of a grammar's."""

    def __init__(self) -> None:
        self._encoder = AutoTokenizer.from_pretrained(ensure_embedded())
        self._tokenizer = llguidance.hf.from_tokenizer(self._encoder)

    def takes(self, constraint: Constraint | None, text: str) -> bool:
        assert isinstance(constraint, Lark)
        grammar = llguidance.LLMatcher.grammar_from_lark(constraint.grammar)
        assert llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer) == ""
        matcher = llguidance.LLMatcher(self._tokenizer, grammar)
        token_ids = self._encoder.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()

    def text(self, token_id: int | None, otherwise: str) -> str:
        return otherwise if token_id is None else str(self._encoder.decode([token_id]))


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


@pytest.mark.parametrize("dialect", CALLS)
def test_a_forced_answer_is_one_call_or_several_and_nothing_else(judge: Judge, dialect: ToolDialect) -> None:
    constraint = tool_constraint(ReplyFormat(tools=dialect), REQUIRED)
    one, more = CALLS[dialect]
    end = ENDS.get(dialect, "")
    assert judge.takes(constraint, one + end)
    assert judge.takes(constraint, one + more + end)
    assert not judge.takes(constraint, "Sure! " + one + end)
    assert not judge.takes(constraint, "")
    assert not judge.takes(constraint, one.replace("1", "true") + end)
    assert not judge.takes(constraint, one.replace("get", "got") + end)


@pytest.mark.parametrize("dialect", CALLS)
def test_what_the_grammar_allows_the_parser_reads(dialect: ToolDialect) -> None:
    reader = parser(ReplyFormat(tools=dialect), REQUIRED)
    one, more = CALLS[dialect]
    parts = [*reader.push(one + more + ENDS.get(dialect, "")), *reader.finish()]
    assert [part.name for part in parts if isinstance(part, ToolCallStart)] == ["get", "ping"]


@pytest.mark.parametrize("dialect", CALLS)
def test_one_call_alone_where_no_parallel_calls_are_wanted(judge: Judge, dialect: ToolDialect) -> None:
    constraint = tool_constraint(ReplyFormat(tools=dialect), ToolPolicy(tools=TOOLS, mode="required", parallel=False))
    one, more = CALLS[dialect]
    end = ENDS.get(dialect, "")
    assert judge.takes(constraint, one + end)
    assert not judge.takes(constraint, one + more + end)


@pytest.mark.parametrize("dialect", ["hermes", "mistral-named", "qwen3-coder"])
def test_strict_tools_may_be_called_in_free_text_and_only_with_valid_arguments(
    judge: Judge, dialect: ToolDialect
) -> None:
    constraint = tool_constraint(ReplyFormat(tools=dialect), AUTO)
    one, more = CALLS[dialect]
    for text in ("", "No need.", one, f"Let me see.\n{one}", one + more, one + "\nDone."):
        assert judge.takes(constraint, text)
    assert not judge.takes(constraint, one.replace("1", "true"))


def test_free_calls_of_tools_that_are_not_strict_need_no_grammar() -> None:
    loose = ToolPolicy(tools=(Tool(name="ping"),), mode="auto")
    assert tool_constraint(ReplyFormat(), loose) is None
    assert tool_constraint(ReplyFormat(), ToolPolicy(tools=TOOLS, mode="none")) is None
    assert tool_constraint(ReplyFormat(tools="pythonic"), AUTO) is None  # no marker to begin at


def test_an_answer_in_json_and_calls_go_together(judge: Judge) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for answer in (JsonSchema(schema=schema), AnyJson()):
        constraint = tool_constraint(ReplyFormat(), AUTO, answer)
        assert judge.takes(constraint, '{"x": 1}')
        assert judge.takes(constraint, CALLS["hermes"][0])
        assert not judge.takes(constraint, "text")
    assert tool_constraint(ReplyFormat(), ToolPolicy(), AnyJson()) == AnyJson()


def test_a_regex_and_calls_do_not_go_together() -> None:
    with pytest.raises(RequestError) as raised:
        tool_constraint(ReplyFormat(), AUTO, Regex(pattern="a+"))
    assert raised.value.param == "regex"


def test_a_model_that_thinks_may_do_so_before_a_forced_call(judge: Judge) -> None:
    thinker = ReplyFormat(thinking="qwen3")
    call = CALLS["hermes"][0]
    thinks = tool_constraint(thinker, REQUIRED)
    assert judge.takes(thinks, f"<think>\nHm.\n</think>\n\n{call}")
    assert judge.takes(thinks, call)
    assert not judge.takes(thinks, f"Hm.\n</think>\n\n{call}")
    assert not judge.takes(thinks, "<think>\nHm.\n</think>\n\nNo.")
    assert not judge.takes(tool_constraint(thinker, REQUIRED, may_think=False), f"<think>\nHm.\n</think>\n\n{call}")


OPENED = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
THINKERS: list[ReplyFormat] = [
    ReplyFormat(thinking="qwen3"),
    ReplyFormat(thinking="deepseek-r1"),
    ReplyFormat(thinking="qwen3", special_tokens=(("<think>", 4), ("</think>", 5))),
]
ANSWER = JsonSchema(schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


@pytest.mark.parametrize("format", THINKERS)
@pytest.mark.parametrize(
    ("policy", "answer", "text"),
    [
        (NO_TOOLS, ANSWER, '{"a": 1}'),
        (NO_TOOLS, AnyJson(), '{\n  "a": 1\n}'),
        (NO_TOOLS, JsonSchema(schema=True), '"a"'),
        (AUTO, ANSWER, '{"a": 1}'),
        (AUTO, ANSWER, CALLS["hermes"][0]),
        (REQUIRED, None, CALLS["hermes"][0]),
    ],
)
def test_a_thought_that_the_prompt_has_opened_must_end_before_the_answer(
    judge: Judge, format: ReplyFormat, policy: ToolPolicy, answer: Constraint | None, text: str
) -> None:
    """So that the parser, which reads a thought up to its end, finds the answer."""
    wanted = tool_constraint(format, policy, answer)
    behind = constraint_behind(OPENED, wanted, format)
    begin, end = (judge.text(dict(format.special_tokens).get(tag), tag) for tag in ("<think>", "</think>"))
    thought = f"Hm, {{1}}.\n{end}\n\n"
    for written in (thought + text, f"{begin}\n{thought}{text}"):
        assert judge.takes(behind, written)
    assert not judge.takes(behind, text)
    assert not judge.takes(behind, thought)
    assert shown(format, policy, wanted, OPENED, f"Hm, {{1}}.\n</think>\n\n{text}") == ("Hm, {1}.", text)


@pytest.mark.parametrize("format", THINKERS)
def test_behind_a_thought_that_is_over_an_answer_may_begin_at_once(judge: Judge, format: ReplyFormat) -> None:
    wanted = tool_constraint(format, NO_TOOLS, ANSWER)
    assert constraint_behind(CLOSED, wanted, format) == wanted
    assert judge.takes(wanted, '{"a": 1}')
    assert not judge.takes(wanted, 'Here it is: {"a": 1}')
    assert shown(format, NO_TOOLS, wanted, CLOSED, '{"a": 1}') == ("", '{"a": 1}')


@pytest.mark.parametrize(
    "wanted",
    [
        tool_constraint(THINKERS[0], NO_TOOLS, ANSWER, may_think=False),
        tool_constraint(THINKERS[0], NO_TOOLS, Regex(pattern="Paris|Rome")),
        tool_constraint(THINKERS[0], NO_TOOLS, Lark(grammar='start: "Paris"')),
    ],
)
def test_an_answer_that_has_no_place_for_a_thought_is_none_whatever_the_template_opened(wanted: Constraint) -> None:
    assert constraint_behind(OPENED, wanted, THINKERS[0]) == wanted
    assert shown(THINKERS[0], NO_TOOLS, wanted, OPENED, "Paris") == ("", "Paris")


def test_free_text_with_strict_tools_may_go_on_with_an_opened_thought(judge: Judge) -> None:
    wanted = tool_constraint(THINKERS[0], AUTO)
    call = CALLS["hermes"][0]
    assert judge.takes(constraint_behind(OPENED, wanted, THINKERS[0]), f"Hm.\n</think>\n\n{call}")
    assert shown(THINKERS[0], AUTO, wanted, OPENED, f"Hm.\n</think>\n\n{call}") == ("Hm.", call)


def test_a_schema_that_cannot_be_used_is_refused_by_its_field() -> None:
    for schema in (False, {"const": 10**400}, {"enum": ["x" * 1000 + str(i) for i in range(300)]}):
        with pytest.raises(RequestError) as raised:
            tool_constraint(THINKERS[0], NO_TOOLS, JsonSchema(schema=schema, param="p"))
        assert raised.value.param == "p"


def shown(
    format: ReplyFormat, policy: ToolPolicy, constraint: Constraint | None, prompt_tail: str, text: str
) -> tuple[str, str]:
    """The thought, and the content or the text of the call that came instead."""
    reader = parser(format, policy, constraint=constraint, prompt_tail=prompt_tail)
    parts = [*reader.push(text), *reader.finish()]
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    if any(isinstance(part, ToolCallStart) for part in parts):
        return thought, text[text.index("<tool_call>") :]
    return thought, "".join(part.text for part in parts if isinstance(part, Content))


def test_a_marker_that_is_a_special_token_is_that_token(judge: Judge) -> None:
    special = ReplyFormat(tools="mistral-named", special_tokens=(("[TOOL_CALLS]", 4), ("[ARGS]", 5)))
    constraint = tool_constraint(special, REQUIRED)
    assert isinstance(constraint, Lark)
    assert "<[4]>" in constraint.grammar
    assert judge.takes(constraint, judge._encoder.decode([4]) + "ping" + judge._encoder.decode([5]) + "{}")


def test_without_a_dialect_nothing_can_be_forced() -> None:
    with pytest.raises(RequestError, match="--tool-call-parser") as raised:
        tool_constraint(ReplyFormat(tools="none"), REQUIRED)
    assert raised.value.param == "tool_choice"


def test_arguments_are_written_as_json_dumps_writes_them(judge: Judge) -> None:
    constraint = tool_constraint(ReplyFormat(), REQUIRED)
    text = '<tool_call>\n{"name": "get", "arguments": %s}\n</tool_call>'
    assert judge.takes(constraint, text % json.dumps({"a": 1, "b": "x"}))
    assert not judge.takes(constraint, text % json.dumps({"a": 1, "b": "x"}, separators=(",", ":")))
