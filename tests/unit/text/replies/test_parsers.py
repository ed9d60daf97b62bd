from __future__ import annotations

import itertools
import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefall.text.replies.content import joined
from pagefall.text.replies.dialects import ReplyFormat, Thinking, ToolDialect
from pagefall.text.replies.formats import parser
from pagefall.text.replies.parts import Content, Reasoning, ReplyPart, ToolCallArguments, ToolCallStart
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import Tool

TOOLS = (
    Tool(name="get", parameters={"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool(name="ping"),
)
AUTO = ToolPolicy(tools=TOOLS, mode="auto")
DIALECTS: tuple[ToolDialect, ...] = get_args(ToolDialect)
THOUGHTS: tuple[Thinking, ...] = get_args(Thinking)

Call = tuple[str, object]


def parts_of(
    dialect: ToolDialect, *pieces: str, policy: ToolPolicy = AUTO, thinking: Thinking = "none"
) -> list[ReplyPart]:
    numbers = itertools.count()
    reader = parser(ReplyFormat(tools=dialect, thinking=thinking), policy, new_call_id=lambda: f"id{next(numbers)}")
    parts = [part for piece in pieces for part in reader.push(piece)]
    return joined([*parts, *reader.finish()])


def content_of(parts: list[ReplyPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def calls_of(parts: list[ReplyPart]) -> list[Call]:
    """Names and arguments. The indices are without gaps, and arguments belong to the last call."""
    names = [part.name for part in parts if isinstance(part, ToolCallStart)]
    assert [part.index for part in parts if isinstance(part, ToolCallStart)] == list(range(len(names)))
    texts = [
        "".join(p.text for p in parts if isinstance(p, ToolCallArguments) and p.index == i) for i in range(len(names))
    ]
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


NESTED = {"a": 'quo"te }]</tool_call> 안녕 \\', "n": [1, -2.5e3, {"x": None}]}
CODER_CALLS = """Now:
<tool_call>
<function=get>
<parameter=a>
if a < 2:
    pass
</parameter>
<parameter=n>
7
</parameter>
</function>
</tool_call>
<tool_call>
<function=ping>
</function>
</tool_call>"""
WHOLE: list[tuple[ToolDialect, str, str, list[Call]]] = [
    ("hermes", '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>', "", [("get", {"a": "x"})]),
    (
        "hermes",
        'See.\n<tool_call>{"name":"get","arguments":{"a":"x"}}</tool_call>\n<tool_call>{"name":"ping"}</tool_call>\n',
        "See.",
        [("get", {"a": "x"}), ("ping", {})],
    ),
    ("hermes", f'<tool_call>{{"arguments": {json.dumps(NESTED)}, "name": "get"}}</tool_call>', "", [("get", NESTED)]),
    ("hermes", '<tool_call>{"name": "get", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("get", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "get", "arguments": {"n": 1}}', "", [("get", {"n": 1})]),
    ("hermes", '<tool_call>{"name": "ping", "arguments": null} and so on', " and so on".strip(), [("ping", {})]),
    ("llama3", '{"name": "get", "parameters": {"a": "x"}}', "", [("get", {"a": "x"})]),
    (
        "llama3",
        '<|python_tag|>{"name": "get", "parameters": {"n": 1}}; {"name": "ping", "parameters": {}}',
        "",
        [("get", {"n": 1}), ("ping", {})],
    ),
    ("llama3", '{"type": "function", "name": "ping", "parameters": {}}', "", [("ping", {})]),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get", "arguments": {"a": "]"}}, {"name": "ping", "arguments": {}}]',
        "",
        [("get", {"a": "]"}), ("ping", {})],
    ),
    (
        "mistral-named",
        'Wait.[TOOL_CALLS]get[ARGS]{"a": "x"}[TOOL_CALLS]ping{}',
        "Wait.",
        [("get", {"a": "x"}), ("ping", {})],
    ),
    ("mistral-named", '[TOOL_CALLS]get[CALL_ID]abc[ARGS]{"n": 2}', "", [("get", {"n": 2})]),
    ("pythonic", "[get(a='it\\'s ]', n=3), ping()]", "", [("get", {"a": "it's ]", "n": 3}), ("ping", {})]),
    (
        "pythonic",
        "<|python_start|>[get(a=True, n=[1, {'k': null}])]<|python_end|>",
        "",
        [("get", {"a": True, "n": [1, {"k": None}]})],
    ),
    (
        "qwen3-coder",
        CODER_CALLS,
        "Now:",
        [("get", {"a": "if a < 2:\n    pass", "n": 7}), ("ping", {})],
    ),
    ("qwen3-coder", "<function=get>\n<parameter=a>\n12\n</parameter>\n</function>", "", [("get", {"a": "12"})]),
]
NO_CALLS: list[tuple[ToolDialect, str]] = [
    ("hermes", "a < b and <tool_cal> or <tool"),
    ("hermes", '<tool_call>{"name": "get", "argum'),
    ("hermes", "<tool_call>get the thing</tool_call>"),
    ("hermes", 'so <tool_call>\n{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "a\\ud800", "arguments": {}}</tool_call>'),
    ("llama3", '{"name": "other", "parameters": {}}'),
    ("llama3", '{"answer": 42}'),
    ("llama3", '  {"name": "get", '),
    ("mistral", "[TOOL_CALLS] what?"),
    ("mistral", '[TOOL_CALLS][{"name": "get"'),
    ("mistral", "[TOOL_CALLS][]"),
    ("mistral-named", "[TOOL_CALLS]get[ARGS] none"),
    ("pythonic", "[a link](https://example.org)"),
    ("pythonic", "[get(a=1)"),
    ("pythonic", "[get(1)]"),
    ("pythonic", "[other(a=1)]"),
    ("pythonic", "[get(a=__import__('os').name)]"),
    ("pythonic", "[get(a=float('nan'))]"),
    ("qwen3-coder", "<tool_call>\n<function=get>\n<parameter=a>\nx"),
    ("qwen3-coder", "<tool_call>nothing</tool_call>"),
]


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), WHOLE)
def test_calls_are_told_with_their_arguments_and_the_rest_is_content(
    dialect: ToolDialect, text: str, content: str, calls: list[Call]
) -> None:
    parts = parts_of(dialect, text)
    assert calls_of(parts) == calls
    assert content_of(parts).strip() == content


@pytest.mark.parametrize(("dialect", "text"), NO_CALLS)
def test_what_is_no_call_or_not_a_whole_one_is_content(dialect: ToolDialect, text: str) -> None:
    assert parts_of(dialect, text) == [Content(text)]


@pytest.mark.parametrize(("dialect", "text", "content", "calls"), WHOLE)
def test_a_character_at_a_time_tells_the_same(dialect: ToolDialect, text: str, content: str, calls: list[Call]) -> None:
    assert parts_of(dialect, *text) == parts_of(dialect, text)


def test_json_arguments_pass_through_as_they_are_written_while_they_are_written() -> None:
    reader = parser(ReplyFormat(), AUTO, new_call_id=lambda: "id")
    assert reader.push('<tool_call>\n{"name": "get", "arguments": {"a"') == [
        ToolCallStart(index=0, call_id="id", name="get"),
        ToolCallArguments(index=0, text='{"a"'),
    ]
    assert reader.push(':  "x') == [ToolCallArguments(index=0, text=':  "x')]
    assert reader.push('"  }}') == [ToolCallArguments(index=0, text='"  }')]
    assert reader.push("\n</tool_call>") == []
    assert reader.finish() == []


def test_arguments_that_have_begun_stay_when_the_answer_is_cut() -> None:
    parts = parts_of("hermes", '<tool_call>{"name": "get", "arguments": {"a": "lo')
    assert parts == [ToolCallStart(index=0, call_id="id0", name="get"), ToolCallArguments(index=0, text='{"a": "lo')]


def test_one_call_at_most_where_no_parallel_calls_are_wanted() -> None:
    one = ToolPolicy(tools=TOOLS, mode="auto", parallel=False)
    text = "<tool_call>{}</tool_call>".format('{"name": "ping"}') * 2
    assert calls_of(parts_of("hermes", text, policy=one)) == [("ping", {})]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_is_a_call_where_none_may_be(dialect: ToolDialect) -> None:
    for _, text, _, _ in WHOLE:
        assert parts_of(dialect, text, policy=ToolPolicy(tools=TOOLS, mode="none")) == [Content(text)]


def test_call_ids_are_unique_and_in_the_form_that_the_dialect_takes() -> None:
    text = '<tool_call>{"name": "ping"}</tool_call>' * 50
    ids = {part.call_id for part in joined(parser(ReplyFormat(), AUTO).push(text)) if isinstance(part, ToolCallStart)}
    assert len(ids) == 50
    [start, _] = parser(ReplyFormat(tools="mistral"), AUTO).push('[TOOL_CALLS][{"name": "ping", "arguments": {}}]')
    assert isinstance(start, ToolCallStart)
    assert len(start.call_id) == 9
    assert start.call_id.isalnum()


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|python_start|>"),
        *(
            "<function=get>",
            "<parameter=a>",
            "</parameter>",
            "</function>",
            "<think>",
            "</think>",
            "get",
            "ping",
            "(",
            ")",
        ),
        *(
            '{"name": "get", "arguments": {"a": "x"}}',
            '{"name":"ping","parameters":{}}',
            '"arguments"',
            '"name"',
            "get(a=",
        ),
        *("{", "}", "[", "]", ":", ",", ";", '"', "\\", "\\u00", "1", "-", "e", "true", " ", "\n", "<", "안", "text"),
    ]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=25).map("".join)


@given(
    dialect=st.sampled_from(DIALECTS),
    thinking=st.sampled_from(THOUGHTS),
    text=TEXTS,
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
@settings(deadline=None, max_examples=600)
def test_the_joined_parts_do_not_depend_on_the_cuts_and_nothing_raises(
    dialect: ToolDialect, thinking: Thinking, text: str, cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert parts_of(dialect, *pieces, thinking=thinking) == parts_of(dialect, text, thinking=thinking)


@given(whole=st.sampled_from(WHOLE), end=st.integers(0, 300))
@settings(deadline=None, max_examples=300)
def test_a_cut_answer_begins_like_the_whole_one(whole: tuple[ToolDialect, str, str, list[Call]], end: int) -> None:
    dialect, text, _, calls = whole
    parts = parts_of(dialect, text[:end])
    starts = [part.name for part in parts if isinstance(part, ToolCallStart)]
    assert starts == [name for name, _ in calls][: len(starts)]
    if not starts:  # nothing that a cut call had is lost
        assert content_of(parts) == text[:end]


THOUGHT = "<think>\nHm, <b> maybe.\n</think>\n\nYes."
THINKING: list[tuple[Thinking, str, str, str, str]] = [
    ("qwen3", "", THOUGHT, "Hm, <b> maybe.", "Yes."),
    ("qwen3", "assistant\n<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("qwen3", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    ("qwen3", "", "No thought.\n<think>", "", "No thought.\n<think>"),
    ("qwen3", "", "<think>\n\n</think>\n\nYes.", "", "Yes."),
    ("qwen3", "<think>\n", "Hm, never ends ", "Hm, never ends", ""),
    ("deepseek-r1", "", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("deepseek-r1", "", THOUGHT, "Hm, <b> maybe.", "Yes."),
    ("deepseek-r1", "<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    ("none", "", THOUGHT, "", THOUGHT),
]


@pytest.mark.parametrize(("thinking", "prompt_tail", "text", "thought", "content"), THINKING)
def test_thoughts_are_apart_from_the_answer(
    thinking: Thinking, prompt_tail: str, text: str, thought: str, content: str
) -> None:
    for pieces in ([text], list(text)):
        reader = parser(ReplyFormat(thinking=thinking), prompt_tail=prompt_tail)
        parts = [part for piece in pieces for part in reader.push(piece)] + reader.finish()
        assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == thought
        assert content_of(parts) == content


def test_a_call_behind_a_thought_is_a_call_and_one_within_it_is_not() -> None:
    call = '<tool_call>{"name": "ping"}</tool_call>'
    parts = parts_of("hermes", f"<think>\nI could {call}.\n</think>\n\n{call}", thinking="qwen3")
    assert parts[0] == Reasoning(f"I could {call}.")
    assert calls_of(parts) == [("ping", {})]
