"""Fields of a body that nobody here knows: harmless ones are ignored, the others are refused by name.

Clients send fields of servers that they know better than this one. Most change nothing that matters, and to refuse them
would shut the client out; but a misspelt field, and one with which another server would have answered something else,
must not be ignored silently.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from pagefall.errors import RequestError

_log = logging.getLogger("pagefall.api")

_SIMILAR: Final = 0.8
"""From here on two names are taken for one that was misspelt (`difflib`'s ratio)."""

_MAX_NAME: Final = 200

_CHANGES_THE_ANSWER: Final = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "beam_width",
        "custom_logit_processor",
        "custom_params",
        "documents",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dynatemp_exponent",
        "dynatemp_range",
        "early_stopping",
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
)
"""Known of other engines."""


def check_unknown(body: bytes, wire_type: type[msgspec.Struct]) -> None:
    """Raises `RequestError` for a field of the object `body` that must not be ignored; logs the others."""
    known = frozenset(wire_type.__struct_encode_fields__)
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    unknown = [name for name in fields if name not in known]
    if not unknown:
        return
    for name in unknown:
        if bytes(fields[name]) != b"null":
            _refuse_if_it_matters(name, known)
    _log.debug("ignored fields of a %s: %s", wire_type.__name__, _listed(unknown))


def _refuse_if_it_matters(name: str, known: Collection[str]) -> None:
    if name in _CHANGES_THE_ANSWER:
        raise RequestError(
            f"Unsupported parameter: '{name}' is not supported by this server. Leave it out.",
            param=name,
            code="unsupported_parameter",
        )
    if near := difflib.get_close_matches(name[:100], known, n=1, cutoff=_SIMILAR):
        raise RequestError(
            f"Unrecognized request argument supplied: {name[:_MAX_NAME]}. Did you mean '{near[0]}'?",
            param=name[:_MAX_NAME],
            code="unknown_parameter",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:50]) for name in names)[:_MAX_NAME]
