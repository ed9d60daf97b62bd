from __future__ import annotations

import pytest
from tests import chat_templates

from pagefall.text.replies.dialects import Thinking, ToolDialect
from pagefall.text.replies.formats import kept_special_token_ids, reply_format
from pagefall.text.replies.policy import NO_TOOLS, ToolPolicy
from pagefall.text.requests import Tool

SPECIAL = {"[TOOL_CALLS]": 5, "[ARGS]": 6, "<|python_tag|>": 7, "<think>": 8}


@pytest.mark.parametrize(
    ("template", "dialect", "thinking"),
    [
        (None, "hermes", "none"),
        (chat_templates.CHATML_WITH_TOOLS, "hermes", "none"),
        (chat_templates.SHORT_IDS, "mistral-named", "none"),
        ("{{ tools }}[TOOL_CALLS][{", "mistral", "none"),
        (chat_templates.ONE_CALL, "llama3", "none"),
        ("{{ tools }}<|start_header_id|>[func_name1(params_name1=params_value1)]", "pythonic", "none"),
        ("{{ tools }}<tool_call>\n<function=x>\n<parameter=y>", "qwen3-coder", "none"),
        (chat_templates.THINKS, "hermes", "qwen3"),
        ("<｜User｜><｜Assistant｜><think>\n", "hermes", "deepseek-r1"),
    ],
)
def test_auto_reads_the_chat_template(template: str | None, dialect: ToolDialect, thinking: Thinking) -> None:
    found = reply_format("auto", "auto", chat_template=template, special_token_id=SPECIAL.get)
    assert (found.tools, found.thinking) == (dialect, thinking)


def test_a_flag_wins_over_the_template() -> None:
    template = chat_templates.THINKS
    named = reply_format("qwen", "none", chat_template=template, special_token_id=SPECIAL.get)
    assert (named.tools, named.thinking) == ("hermes", "none")
    assert reply_format("none", "qwen3", chat_template=None, special_token_id=SPECIAL.get).tools == "none"
    assert (
        reply_format("mistral", "none", chat_template="[ARGS]", special_token_id=SPECIAL.get).tools == "mistral-named"
    )


def test_only_markers_that_are_special_tokens_need_to_be_kept_and_only_where_they_are_read() -> None:
    replies = reply_format("mistral", "none", chat_template="[ARGS]", special_token_id=SPECIAL.get)
    tools = (Tool(name="f"),)
    assert kept_special_token_ids(replies, ToolPolicy(tools=tools, mode="auto")) == {5, 6}
    assert kept_special_token_ids(replies, ToolPolicy(tools=tools, mode="none")) == frozenset()
    assert kept_special_token_ids(replies, NO_TOOLS) == frozenset()
    thinks = reply_format("hermes", "qwen3", chat_template=None, special_token_id=SPECIAL.get)
    assert kept_special_token_ids(thinks, NO_TOOLS) == {8}
