"""`/v1/chat/completions` on the wire, and what it means to the engine."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pagefall.api.no_ops import NoOps, refuse_unsupported
from pagefall.api.structured_output import answer_constraint
from pagefall.api.template_kwargs import may_think, with_effort
from pagefall.api.wire_sampling import (
    SAMPLING_NO_OPS,
    NumTokens,
    NumTopLogprobs,
    SamplingFields,
    sampling_params,
    stop_strings,
    stop_token_ids,
)
from pagefall.api.wire_tools import (
    NamedFunction,
    WireCalledFunction,
    WireFunction,
    WireTool,
    WireToolCall,
    WireToolChoice,
    arguments_of,
    functions_of,
    tool_calls_of,
    tool_policy,
    tools_of,
)
from pagefall.api.wire_usage import WireUsage
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.replies.formats import kept_special_token_ids
from pagefall.text.replies.grammar import tool_constraint
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import ChatMessage, ChatPrompt, GenerateRequest, ModelCard, Tool, ToolCall


class ContentPart(msgspec.Struct, kw_only=True):
    """Clients put marks of their own into parts and messages, which change nothing here."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class WireMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None

    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    function_call: WireCalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: Any = None
    audio: Any = None
    annotations: Any = None


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=False):
    """OpenAI's request; `add_generation_prompt`, `continue_final_message` and `chat_template_kwargs` as in SGLang.

    `reasoning_effort` is told to the chat template.
    """

    messages: list[WireMessage]
    max_completion_tokens: NumTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    tools: list[WireTool] | None = None
    tool_choice: str | WireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[WireFunction] | None = None
    function_call: str | NamedFunction | None = None

    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    moderation: Any = None


_NO_OPS: Final[NoOps] = {
    **SAMPLING_NO_OPS,
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
}

_MESSAGE_NO_OPS: Final[NoOps] = {
    "refusal": ("",),
    "audio": (),
    "annotations": ([],),
}

_PART_SEPARATOR: Final = "\n"
"""Between the text parts of one message, which templates expect as one string."""


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprobs, frozen=True, kw_only=True):
    top_logprobs: list[TokenLogprobs]


class ChoiceLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class CalledFunctionDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first of a call has everything but the arguments, the others have these."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`reasoning_content` is what other engines call what a model thinks aloud."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None
    function_call: CalledFunctionDelta | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: WireUsage | UnsetType | None = UNSET


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ChatToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ChatToolCall, ...] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: WireUsage


class ChatTools(msgspec.Struct, frozen=True, kw_only=True):
    """`shown`: those of the prompt; what may be called of them is the policy's. `is_old`: they came as `functions`."""

    shown: tuple[Tool, ...]
    policy: ToolPolicy
    is_old: bool


def chat_tools(body: ChatCompletionRequest) -> ChatTools:
    """The tools of the request, which stay in the prompt whatever may be called. Raises `RequestError`."""
    if body.tools and body.functions:
        raise RequestError("'functions' is the older name of 'tools': send only 'tools'.", param="functions")
    if body.functions:
        shown = functions_of(body.functions)
        name = body.function_call.name if isinstance(body.function_call, NamedFunction) else None
        choice = WireToolChoice(type="function", function=NamedFunction(name=name)) if name else body.function_call
        assert not isinstance(choice, NamedFunction)
        policy = tool_policy(shown, choice, parallel=False, path="function_call")
        return ChatTools(shown=shown, policy=policy, is_old=True)
    shown = tools_of(body.tools or [])
    policy = tool_policy(shown, body.tool_choice, parallel=body.parallel_tool_calls)
    return ChatTools(shown=shown, policy=policy, is_old=False)


def chat_request(
    body: ChatCompletionRequest, card: ModelCard, request_id: RequestId, tools: ChatTools
) -> GenerateRequest:
    """Raises `RequestError` naming the first field that is wrong or not supported."""
    refuse_unsupported(body, _NO_OPS)
    kwargs = with_effort(body.chat_template_kwargs, body.reasoning_effort)
    return GenerateRequest(
        request_id=request_id,
        prompt=chat_prompt(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            template_kwargs=kwargs,
            tools=tools.shown,
        ),
        sampling=sampling_params(body, card, num_top_logprobs=_num_top_logprobs(body)),
        max_tokens=_max_tokens(body),
        stop=stop_strings(body),
        stop_token_ids=stop_token_ids(body, card),
        ignore_eos=bool(body.ignore_eos),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        constraint=tool_constraint(card.replies, tools.policy, answer_constraint(body), may_think=may_think(kwargs)),
        kept_special_token_ids=kept_special_token_ids(card.replies, tools.policy),
    )


def chat_prompt(
    messages: list[WireMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    template_kwargs: dict[str, Any],
    tools: tuple[Tool, ...] = (),
) -> ChatPrompt:
    """`add_generation_prompt` None means: unless the final message is to be continued."""
    if not messages:
        raise RequestError("'messages' must have at least one message.", param="messages", code="empty_array")
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "'continue_final_message' continues the last turn and 'add_generation_prompt' begins a new one: "
            "send only one of them.",
            param="continue_final_message",
        )
    return ChatPrompt(
        messages=_turns(messages),
        tools=tools,
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=continue_final_message,
        template_kwargs=template_kwargs,
    )


def _turns(messages: list[WireMessage]) -> tuple[ChatMessage, ...]:
    """Checks that an answer of a tool answers a call of the turn before."""
    turns: list[ChatMessage] = []
    called: tuple[ToolCall, ...] = ()
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        turn = _message(message, path)
        if message.role == "function":  # the older form has no ids: it answers the only call there is
            turn = msgspec.structs.replace(turn, tool_call_id=called[0].call_id if called else None)
        if turn.role == "tool" and turn.tool_call_id not in [call.call_id for call in called]:
            raise RequestError(
                f"Invalid value for '{path}.tool_call_id': a message with role '{message.role}' must answer a call in "
                "'tool_calls' of the assistant's message before it.",
                param=f"{path}.tool_call_id",
                code="invalid_value",
            )
        if turn.role != "tool":
            called = turn.tool_calls
        turns.append(turn)
    return tuple(turns)


def _message(message: WireMessage, path: str) -> ChatMessage:
    refuse_unsupported(message, _MESSAGE_NO_OPS, path=f"{path}.")
    match message.role:
        case "system" | "user" | "assistant" | "tool":
            role = message.role
        case "developer":
            role = "system"  # the newer name of the same instructions; templates know only the older
        case "function":
            role = "tool"
        case _:
            raise RequestError(
                f"Unsupported value: '{path}.role' must be 'system', 'developer', 'user', 'assistant' or 'tool'.",
                param=f"{path}.role",
                code="unsupported_value",
            )
    for field in ("tool_calls", "function_call", "reasoning_content", "reasoning"):
        if getattr(message, field) and role != "assistant":
            raise _misplaced(field, "assistant", path)
    if message.tool_call_id is not None and role != "tool":
        raise _misplaced("tool_call_id", "tool", path)
    match message.content:
        case str(text):
            content = text
        case None if role == "assistant":
            content = ""
        case None:
            raise RequestError(
                f"Missing required parameter: '{path}.content' of a {message.role} message must be text.",
                param=f"{path}.content",
                code="missing_required_parameter",
            )
        case parts:
            content = _PART_SEPARATOR.join(_text(part, f"{path}.content[{i}]") for i, part in enumerate(parts))
    return ChatMessage(
        role,
        content,
        message.name,
        tool_calls=_calls(message, path),
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content or message.reasoning or None,
    )


def _calls(message: WireMessage, path: str) -> tuple[ToolCall, ...]:
    if message.function_call is None:
        return tool_calls_of(message.tool_calls or [], f"{path}.tool_calls")
    called = message.function_call
    return (ToolCall(call_id=f"call_{called.name}", name=called.name, arguments=arguments_of(called)),)


def _misplaced(field: str, role: str, path: str) -> RequestError:
    return RequestError(
        f"'{path}.{field}' belongs to a message with role '{role}'.", param=f"{path}.{field}", code="invalid_value"
    )


def _text(part: ContentPart, path: str) -> str:
    if part.type != "text":
        raise RequestError(
            f"Unsupported value: '{path}.type' must be 'text', this server has no other kind of content.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    if part.text is None:
        raise RequestError(
            f"Missing required parameter: '{path}.text'.", param=f"{path}.text", code="missing_required_parameter"
        )
    return part.text


def _max_tokens(body: ChatCompletionRequest) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens in (None, body.max_tokens):
        return body.max_completion_tokens or body.max_tokens
    raise RequestError(
        "'max_tokens' and 'max_completion_tokens' contradict each other: send only 'max_completion_tokens'.",
        param="max_tokens",
    )


def _num_top_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None
