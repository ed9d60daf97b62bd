"""Tools for models whose chat template knows none: told, called and answered in Hermes' form, as plain messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from pagefall.text.requests import ChatMessage, Tool, ToolCall
from pagefall.text.tool_schema import as_function

_INTRODUCTION: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def as_plain_messages(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """Messages without calls, tools and roles that a plain template does not know."""
    result: list[ChatMessage] = []
    if tools:
        result.append(ChatMessage("system", _introduction(tools)))
        if messages and messages[0].role == "system":
            first, *messages = messages
            result[0] = replace(
                first, content=f"{first.content}\n\n{result[0].content}" if first.content else result[0].content
            )
    follows_answer = False
    for message in messages:
        if message.role == "tool":
            response = f"<tool_response>\n{message.content}\n</tool_response>"
            if follows_answer:  # answers of parallel calls are one turn
                result[-1] = replace(result[-1], content=f"{result[-1].content}\n{response}")
            else:
                result.append(ChatMessage("user", response))
        elif message.tool_calls:
            text = "\n".join([*([message.content] if message.content else []), *_calls(message.tool_calls)])
            result.append(replace(message, content=text, tool_calls=()))
        else:
            result.append(message)
        follows_answer = message.role == "tool"
    return result


def _introduction(tools: Iterable[Tool]) -> str:
    return _INTRODUCTION.format(tools="\n".join(json.dumps(as_function(tool), ensure_ascii=False) for tool in tools))


def _calls(calls: Iterable[ToolCall]) -> Iterable[str]:
    """The arguments as they are: so a call that the model wrote in this form comes back as it wrote it."""
    for call in calls:
        name = json.dumps(call.name, ensure_ascii=False)
        yield f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments.strip() or "{}"}}}\n</tool_call>'
