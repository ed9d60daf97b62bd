"""What a body of `/v1/responses` means to the engine, and the response that it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pagefall.api.no_ops import NoOps, refuse_unsupported
from pagefall.api.responses_prompt import turns
from pagefall.api.structured_output import JsonObjectFormat, TextFormat, schema_constraint
from pagefall.api.template_kwargs import may_think, with_effort
from pagefall.api.wire_responses import (
    ReasoningSettings,
    Response,
    ResponsesPromptFields,
    ResponsesRequest,
    ResponsesSchemaFormat,
    TextSettings,
    WireItem,
    WireResponsesChoice,
    WireResponsesTool,
)
from pagefall.api.wire_sampling import SamplingFields, sampling_params, stop_strings
from pagefall.api.wire_tools import (
    AllowedTools,
    NamedFunction,
    NamedTool,
    WireToolChoice,
    check_tools,
    tool_of,
    tool_policy,
)
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.constraints import AnyJson, Constraint
from pagefall.text.replies.formats import kept_special_token_ids
from pagefall.text.replies.grammar import tool_constraint
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import ChatPrompt, GenerateRequest, ModelCard, Tool

_PROMPT_NO_OPS: Final[NoOps] = {
    "conversation": (),
    "prompt": (),
    "personality": (),
    "truncation": ("disabled",),
}

_NO_OPS: Final[NoOps] = {
    "background": (False,),
    "moderation": (),
    # Of other endpoints: here they have other names.
    "max_tokens": (),
    "messages": (),
    "response_format": (),
}

LOGPROBS: Final = "message.output_text.logprobs"

_INCLUDABLE: Final = frozenset(
    {
        LOGPROBS,
        "reasoning.encrypted_content",  # thoughts come in the clear, and come back so
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What OpenAI has. Most of it belongs to items that there are none of here."""


def prompt_of(body: ResponsesPromptFields, known: Sequence[WireItem], new: Sequence[WireItem]) -> ChatPrompt:
    """`known`: the items of the response that this one goes on from. Raises `RequestError`."""
    refuse_unsupported(body, _PROMPT_NO_OPS)
    messages = turns(body.instructions, [*known, *new], num_known=len(known))
    if not messages:
        raise RequestError(
            "Missing required parameter: 'input', text or items, of which there is none.",
            param="input",
            code="missing_required_parameter",
        )
    return ChatPrompt(messages=messages, tools=_tools(body.tools or []), template_kwargs=_template_kwargs(body))


def responses_request(
    body: ResponsesRequest, prompt: ChatPrompt, card: ModelCard, response_id: str
) -> tuple[GenerateRequest, ToolPolicy]:
    """Raises `RequestError` naming the first field that is wrong or not supported."""
    refuse_unsupported(body, _NO_OPS)
    if body.text is not None:
        refuse_unsupported(body.text, {"verbosity": ("medium",)}, path="text.")
    policy = tool_policy(prompt.tools, _choice(body.tool_choice), parallel=body.parallel_tool_calls)
    sampling = SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop=body.stop,
    )
    request = GenerateRequest(
        request_id=RequestId(response_id),
        prompt=prompt,
        sampling=sampling_params(sampling, card, num_top_logprobs=_num_top_logprobs(body)),
        max_tokens=body.max_output_tokens,
        stop=stop_strings(sampling),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        constraint=tool_constraint(
            card.replies, policy, _constraint(body.text), may_think=may_think(prompt.template_kwargs)
        ),
        kept_special_token_ids=kept_special_token_ids(card.replies, policy),
    )
    return request, policy


def begun_response(
    body: ResponsesRequest, card: ModelCard, response_id: str, *, created_at: int, store: bool
) -> Response:
    """The response as it is before anything has come of it."""
    text = body.text or TextSettings()
    return Response(
        id=response_id,
        created_at=created_at,
        status="in_progress",
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        model=card.id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=body.reasoning or ReasoningSettings(),
        safety_identifier=body.safety_identifier,
        store=store,
        temperature=1.0 if body.temperature is None else body.temperature,
        text=TextSettings(format=text.format or TextFormat(), verbosity=text.verbosity or "medium"),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        user=body.user,
        metadata=body.metadata or {},
    )


def _tools(wire: Sequence[WireResponsesTool]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for index, tool in enumerate(wire):
        path = f"tools[{index}]"
        if tool.type != "function":
            raise RequestError(
                f"Unsupported value: '{path}.type' must be 'function', this server has no tools of the type "
                f"'{tool.type[:100]}'.",
                param=f"{path}.type",
                code="unsupported_value",
            )
        if tool.name is None:
            raise RequestError(
                f"Missing required parameter: '{path}.name'.", param=f"{path}.name", code="missing_required_parameter"
            )
        tools.append(
            tool_of(
                tool.name,
                description=tool.description,
                parameters=tool.parameters,
                strict=bool(tool.strict),
                path=path,
            )
        )
    check_tools(tools, "tools")
    return tuple(tools)


def _choice(choice: str | WireResponsesChoice | None) -> str | WireToolChoice | None:
    """As chat has it."""
    match choice:
        case None | "auto" | "none" | "required":
            return choice
        case WireResponsesChoice(type="function", name=str(name)):
            return WireToolChoice(type="function", function=NamedFunction(name=name))
        case WireResponsesChoice(type="allowed_tools", mode=str(mode), tools=list(allowed)):
            tools = [NamedTool(type=tool.type, function=NamedFunction(name=tool.name or "")) for tool in allowed]
            return WireToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=tools))
        case _:
            raise RequestError(
                "Invalid value for 'tool_choice': it is 'auto', 'none', 'required', "
                '{"type": "function", "name": ...} or {"type": "allowed_tools", "mode": ..., "tools": [...]}.',
                param="tool_choice",
                code="invalid_value",
            )


def _constraint(text: TextSettings | None) -> Constraint | None:
    match None if text is None else text.format:
        case JsonObjectFormat():
            return AnyJson()
        case ResponsesSchemaFormat(name=name, schema=schema, strict=strict):
            return schema_constraint(schema, name=name, strict=bool(strict), param="text.format")
        case _:
            return None


def _template_kwargs(body: ResponsesPromptFields) -> dict[str, Any]:
    return with_effort(body.chat_template_kwargs, None if body.reasoning is None else body.reasoning.effort)


def _num_top_logprobs(body: ResponsesRequest) -> int | None:
    for index, name in enumerate(body.include or []):
        if name not in _INCLUDABLE:
            raise RequestError(
                f"Invalid value for 'include[{index}]': it is one of {', '.join(sorted(_INCLUDABLE))}.",
                param=f"include[{index}]",
                code="invalid_value",
            )
    if LOGPROBS in (body.include or []) or body.top_logprobs:
        return body.top_logprobs or 0
    return None
