"""What a body of `/v1/messages` means to the engine."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from pagefall.api.messages_prompt import messages_prompt
from pagefall.api.no_ops import NoOps, refuse_unsupported
from pagefall.api.template_kwargs import may_think
from pagefall.api.wire_messages import CountTokensRequest, MessagesRequest, ToolUseChoice, WireClientTool
from pagefall.api.wire_sampling import SamplingFields, sampling_params
from pagefall.api.wire_tools import check_tools, tool_of, tool_policy
from pagefall.errors import RequestError
from pagefall.messages import RequestId
from pagefall.text.constraints import JsonSchema
from pagefall.text.replies.formats import kept_special_token_ids
from pagefall.text.replies.grammar import tool_constraint
from pagefall.text.replies.policy import ToolPolicy
from pagefall.text.requests import ChatPrompt, GenerateRequest, ModelCard, PinRequest, Tool

_NO_OPS: Final[NoOps] = {"container": (), "mcp_servers": ([],), "compaction": (), "thread": ()}


def prompt_of(body: CountTokensRequest) -> tuple[ChatPrompt, tuple[PinRequest, ...], ToolPolicy]:
    """The prompt, what of it is to be kept, and what may be called. Raises `RequestError`."""
    refuse_unsupported(body, _NO_OPS)
    tools = _tools(body.tools or [])
    prompt, pins = messages_prompt(body, tools, _template_kwargs(body))
    return prompt, pins, _policy(tools, body.tool_choice)


def messages_request(
    body: MessagesRequest, card: ModelCard, request_id: RequestId
) -> tuple[GenerateRequest, ToolPolicy]:
    """Raises `RequestError` naming the first field that is wrong or not supported."""
    prompt, pins, policy = prompt_of(body)
    sampling = SamplingFields(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, min_p=body.min_p, seed=body.seed
    )
    request = GenerateRequest(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling_params(sampling, card, num_top_logprobs=None),
        # Anthropic's models write to the end of their context too where the limit lies beyond it.
        max_tokens=body.max_tokens if body.max_tokens < card.context_length else None,
        stop=tuple(body.stop_sequences or ()),
        cache_salt=body.cache_salt or "",
        pins=pins,
        priority=body.priority or 0,
        constraint=tool_constraint(
            card.replies, policy, _constraint(body), may_think=may_think(prompt.template_kwargs)
        ),
        kept_special_token_ids=kept_special_token_ids(card.replies, policy),
    )
    return request, policy


def _tools(wire: list[WireClientTool]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for index, tool in enumerate(wire):
        path = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            raise RequestError(
                f"Unsupported value: '{path}.type' must be 'custom' or absent, this server has no tools of the type "
                f"'{tool.type[:100]}'.",
                param=f"{path}.type",
                code="unsupported_value",
            )
        try:
            tools.append(
                tool_of(
                    tool.name,
                    description=tool.description,
                    parameters=tool.input_schema,
                    strict=bool(tool.strict),
                    path=path,
                )
            )
        except RequestError as error:
            # Here the schema has another name.
            param = f"{path}.input_schema" if error.param == f"{path}.parameters" else error.param
            raise RequestError(error.message, param=param, code=error.code) from error
    check_tools(tools, "tools")
    return tuple(tools)


def _policy(tools: tuple[Tool, ...], choice: ToolUseChoice | None) -> ToolPolicy:
    choice = choice or ToolUseChoice(type="auto")
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "auto":
            return tool_policy(tools, "auto", parallel=parallel)
        case "any":
            return tool_policy(tools, "required", parallel=parallel)
        case "none":
            return tool_policy(tools, "none", parallel=parallel)
        case "tool":
            named = tuple(tool for tool in tools if tool.name == choice.name)
            if not named:
                raise RequestError(
                    "Invalid value for 'tool_choice.name': it must be the name of one of the 'tools'.",
                    param="tool_choice.name",
                    code="invalid_value",
                )
            return ToolPolicy(tools=named, mode="required", parallel=False)


def _template_kwargs(body: CountTokensRequest) -> dict[str, Any]:
    """`enable_thinking` and `thinking` are what templates call the switch; without one theirs is the default."""
    kwargs = dict(body.chat_template_kwargs or {})
    if body.thinking is not None:
        thinks = body.thinking.type != "disabled"
        kwargs = {"enable_thinking": thinks, "thinking": thinks, **kwargs}
    if body.output_config is not None and body.output_config.effort is not None:
        kwargs.setdefault("reasoning_effort", body.output_config.effort)
    return kwargs


def _constraint(body: MessagesRequest) -> JsonSchema | None:
    formats = {
        "output_config.format": None if body.output_config is None else body.output_config.format,
        "output_format": body.output_format,  # the same before it had its place
    }
    for name, wanted in formats.items():
        if wanted is not None:
            return JsonSchema(schema=wanted.schema, param=name)
    return None


def without_limit(request: GenerateRequest) -> GenerateRequest:
    """The same to the end of the context."""
    return msgspec.structs.replace(request, max_tokens=None)
