"""Fields of a body that its endpoint does not know: harmless ones are ignored, the others are refused by name.

Clients send fields of servers that they know better than this one. Most change nothing that matters, and to refuse them
would shut the client out; but a misspelt field, and one with which another server, or another endpoint of this one,
would have answered something else, must not be ignored silently.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from functools import cache
from typing import Final

import msgspec

from pagefall.api.no_ops import NoOps, named_here
from pagefall.api.wire_chat import ChatCompletionRequest
from pagefall.api.wire_completions import CompletionRequest
from pagefall.api.wire_messages import MessagesRequest
from pagefall.api.wire_responses import ResponsesRequest
from pagefall.api.wire_sampling import SAMPLING_NO_OPS
from pagefall.errors import RequestError

_log = logging.getLogger("pagefall.api")

_SIMILAR: Final = 0.8
"""From here on two names are taken for one that was misspelt (`difflib`'s ratio)."""

_MAX_NAME: Final = 200

_MAX_UNKNOWN: Final = 50
"""Each is compared with all known names, for about a millisecond."""

_ENDPOINTS: Final[tuple[type[msgspec.Struct], ...]] = (
    ChatCompletionRequest,
    CompletionRequest,
    MessagesRequest,
    ResponsesRequest,
)

CHANGES_NOTHING: Final = frozenset(
    {
        "access_programs",
        "background_options",
        "billing_policy",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "image",
        "inference_geo",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "speed",
        "store",
        "stream_options",
        "user",
        "user_profile_id",
        "workspace_id",
    }
)
"""Known of one endpoint, and without effect on the answers of the others."""

_CHANGES_THE_ANSWER: Final = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "beam_width",
        "chat_template",
        "custom_logit_processor",
        "custom_params",
        "documents",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dynatemp_exponent",
        "dynatemp_range",
        "early_stopping",
        "enable_thinking",
        "epsilon_cutoff",
        "eta_cutoff",
        "input_ids",
        "length_penalty",
        "logits_processors",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "mm_processor_kwargs",
        "no_repeat_ngram_size",
        "num_beams",
        "prompt_embeds",
        "prompt_logprobs",
        "smoothing_factor",
        "tfs",
        "tfs_z",
        "truncate_prompt_tokens",
        "typical_p",
        "use_beam_search",
        "xtc_probability",
        "xtc_threshold",
    }
) | frozenset(name for wire in _ENDPOINTS for name in wire.__struct_encode_fields__ if name not in CHANGES_NOTHING)
"""Known of other engines, and of the other endpoints."""

_ASKS_FOR_NOTHING: Final[NoOps] = {
    **SAMPLING_NO_OPS,
    "add_generation_prompt": (True,),
    "background": (False,),
    "best_of": (1,),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "logprobs": (False,),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Values that clients send unasked. Null, and what is empty, asks for nothing either."""


def check_unknown(body: bytes, wire_type: type[msgspec.Struct]) -> None:
    """Raises `RequestError` for a field of the object `body` that must not be ignored; logs the others."""
    known = known_fields(wire_type)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unknown = [name for name in fields if name not in known]
    if not unknown:
        return
    if len(unknown) > _MAX_UNKNOWN:
        raise RequestError(
            f"Unrecognized request arguments supplied: {len(unknown)}, the first is '{unknown[0][:_MAX_NAME]}'. This "
            f"server ignores {_MAX_UNKNOWN} at most.",
            param=unknown[0][:_MAX_NAME],
            code="unknown_parameter",
        )
    for name in unknown:
        _refuse_if_it_matters(name, msgspec.json.decode(fields[name]), known)
    _log.debug("ignored fields of a %s: %s", wire_type.__name__, _listed(unknown))


@cache
def known_fields(wire_type: type[msgspec.Struct]) -> frozenset[str]:
    """Those of `wire_type`; where it is only the prompt of a request, those of the request too."""
    whole = (wire for wire in _ENDPOINTS if issubclass(wire, wire_type))
    return frozenset(name for wire in (wire_type, *whole) for name in wire.__struct_encode_fields__)


def _refuse_if_it_matters(name: str, value: object, known: Collection[str]) -> None:
    if value is None or name in CHANGES_NOTHING:
        return
    if name in _CHANGES_THE_ANSWER:
        if value in ("", [], {}, *_ASKS_FOR_NOTHING.get(name, ())):
            return
        raise RequestError(
            f"Unsupported parameter: '{name}' is not supported by {_whom_and_fix(name, known)}.",
            param=name,
            code="unsupported_parameter",
        )
    if near := difflib.get_close_matches(name[:100], known, n=1, cutoff=_SIMILAR):
        raise RequestError(
            f"Unrecognized request argument supplied: {name[:_MAX_NAME]}. Did you mean '{near[0]}'?",
            param=name[:_MAX_NAME],
            code="unknown_parameter",
        )


def _whom_and_fix(name: str, known: Collection[str]) -> str:
    if name in ("enable_thinking", "thinking") and "chat_template_kwargs" in known:
        return "this endpoint: send it in 'chat_template_kwargs'"
    if (here := named_here(name, known)) is not None:
        return f"this endpoint: here it is called '{here}'"
    is_elsewhere = any(name in wire.__struct_encode_fields__ for wire in _ENDPOINTS)
    return f"this {'endpoint' if is_elsewhere else 'server'}. Leave it out"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:50]) for name in names)[:_MAX_NAME]
