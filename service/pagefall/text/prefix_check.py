"""Whether a chat template lets the next turn begin with the tokens that the last one ended with.

Each case is a conversation, an answer as the model writes it, and the next turn as a client sends it: the answer taken
apart by the reply's parser and given back as history. What the two prompts share is what a prefix cache can reuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from pagefall.errors import RequestError
from pagefall.text.replies.dialects import ReplyFormat, ToolDialect
from pagefall.text.replies.formats import parser
from pagefall.text.replies.parts import Content, Reasoning, ToolCallArguments, ToolCallStart
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import ChatMessage, Tool, ToolCall
from pagefall.text.tokenizer import Tokenizer

CaseName = Literal["plain", "tool call", "parallel calls", "thought given back", "thought left out"]

_TOOL: Final = Tool(
    name="get_weather",
    description="The weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
_HEAD: Final = (ChatMessage("system", "You are a helpful assistant."), ChatMessage("user", "How is it in Paris?"))
_NEXT: Final = ChatMessage("user", "And tomorrow?")
_THOUGHT: Final = "The user asks about Paris. I know little of it."
_ANSWER: Final = "It is sunny in Paris, as far as I know."
_CONTEXT: Final = 30
"""Characters that are shown of a difference."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`num_tokens`: of the prompt and the answer to it. `num_shared`: the first ones the next prompt has too.

    Where these are fewer, `written` is what stood there and `rendered` what the template makes of it. `refusal`: the
    template does not take such a conversation, and nothing was measured.
    """

    name: CaseName
    num_tokens: int = 0
    num_shared: int = 0
    written: str = ""
    rendered: str = ""
    refusal: str | None = None


class PrefixReport(msgspec.Struct, frozen=True, kw_only=True):
    """`knows_tools` False: they are told in plain messages. `writes_date`: prompts change with the clock."""

    replies: ReplyFormat
    knows_tools: bool
    writes_date: bool
    cases: tuple[Case, ...]


def check_prefixes(tokenizer: Tokenizer, replies: ReplyFormat) -> PrefixReport:
    """Raises `RequestError` where there is no chat template."""
    if tokenizer.chat_template is None:
        raise RequestError("This model has no chat template: there are no turns to look at.", code="no_chat_template")
    return PrefixReport(
        replies=replies,
        knows_tools=tokenizer.knows_tools,
        writes_date="strftime_now" in tokenizer.chat_template,
        cases=tuple(_cases(tokenizer, replies)),
    )


def _cases(tokenizer: Tokenizer, replies: ReplyFormat) -> Iterator[Case]:
    yield _case("plain", tokenizer, replies, _ANSWER)
    if replies.thinking != "none":
        thought = f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"
        yield _case("thought given back", tokenizer, replies, thought)
        yield _case("thought left out", tokenizer, replies, thought)
    if replies.tools != "none":
        yield _case("tool call", tokenizer, replies, _calls(replies.tools, ["Paris"]), (_TOOL,))
        yield _case("parallel calls", tokenizer, replies, _calls(replies.tools, ["Paris", "Lyon"]), (_TOOL,))


def _case(
    name: CaseName, tokenizer: Tokenizer, replies: ReplyFormat, answer: str, tools: tuple[Tool, ...] = ()
) -> Case:
    try:
        prompt = tokenizer.apply_chat_template(_HEAD, tools=tools)
        if replies.thinking != "none" and prompt.rstrip().endswith("<think>"):
            answer = answer.removeprefix("<think>\n") if name.startswith("thought") else f"\n</think>\n\n{answer}"
        turns = _turns(answer, prompt, replies, tools, keeps_thought=name == "thought given back")
        rendered = tokenizer.apply_chat_template([*_HEAD, *turns], tools=tools)
    except RequestError as error:
        return Case(name=name, refusal=error.message)
    written = np.concatenate(
        [tokenizer.encode(prompt, add_special_tokens=False), tokenizer.encode(answer, add_special_tokens=False)]
    )
    next_prompt = tokenizer.encode(rendered, add_special_tokens=False)
    same = min(len(written), len(next_prompt))
    differs = np.flatnonzero(written[:same] != next_prompt[:same])
    num_shared = int(differs[0]) if len(differs) else same
    if num_shared == len(written):
        return Case(name=name, num_tokens=num_shared, num_shared=num_shared)
    return Case(
        name=name,
        num_tokens=len(written),
        num_shared=num_shared,
        written=tokenizer.decode(written[num_shared:], skip_special_tokens=False)[:_CONTEXT],
        rendered=tokenizer.decode(next_prompt[num_shared:], skip_special_tokens=False)[:_CONTEXT],
    )


def _turns(
    answer: str, prompt: str, replies: ReplyFormat, tools: tuple[Tool, ...], *, keeps_thought: bool
) -> Sequence[ChatMessage]:
    """The answer as a client gives it back, and the turn after it."""
    reader = parser(replies, ToolPolicy(tools=tools, mode="auto" if tools else "none"), prompt_tail=prompt[-100:])
    content, reasoning = "", ""
    heads: list[ToolCallStart] = []
    arguments: list[str] = []
    for part in [*reader.push(answer), *reader.finish()]:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case ToolCallStart():
                heads.append(part)
                arguments.append("")
            case ToolCallArguments(index=index, text=text):
                arguments[index] += text
    calls = tuple(
        ToolCall(call_id=head.call_id, name=head.name, arguments=text)
        for head, text in zip(heads, arguments, strict=True)
    )
    said = ChatMessage(
        "assistant", content, tool_calls=calls, reasoning_content=reasoning if keeps_thought and reasoning else None
    )
    answers = [ChatMessage("tool", "Sunny, 21 degrees", tool_call_id=call.call_id) for call in calls]
    return (said, *(answers or [_NEXT]))


def _calls(dialect: ToolDialect, cities: Sequence[str]) -> str:
    """As the model writes them."""
    objects = [json.dumps({"city": city}) for city in cities]
    match dialect:
        case "hermes":
            calls = [f'{{"name": "{_TOOL.name}", "arguments": {text}}}' for text in objects]
            return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        case "llama3":
            return "; ".join(f'{{"name": "{_TOOL.name}", "parameters": {text}}}' for text in objects)
        case "mistral":
            calls = [f'{{"name": "{_TOOL.name}", "arguments": {text}}}' for text in objects]
            return f"[TOOL_CALLS][{', '.join(calls)}]"
        case "mistral-named":
            return "".join(f"[TOOL_CALLS]{_TOOL.name}[ARGS]{text}" for text in objects)
        case "pythonic":
            return f"[{', '.join(f'{_TOOL.name}(city={json.dumps(city)})' for city in cities)}]"
        case "qwen3-coder":
            return "\n".join(
                f"<tool_call>\n<function={_TOOL.name}>\n<parameter=city>\n{city}\n</parameter>\n</function>\n</tool_call>"
                for city in cities
            )
        case "none":
            return ""
