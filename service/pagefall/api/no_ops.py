"""OpenAI's fields that Pagefall knows and does not support, and the values of them that change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from pagefall.errors import RequestError

NoOps = Mapping[str, tuple[object, ...]]
"""For each unsupported field, the values that ask for nothing. Null always does."""

_ONE_THING: Final = (
    ("max_output_tokens", "max_completion_tokens", "max_tokens"),
    ("input", "messages", "prompt"),
    ("text", "response_format"),
)
"""Names that the endpoints have for the same."""


def named_here(name: str, known: Collection[str]) -> str | None:
    """What an endpoint with the fields `known` calls that which others call `name`; None: there is no such thing."""
    for names in _ONE_THING:
        if name in names:
            return next((other for other in names if other != name and other in known), None)
    return None


def refuse_unsupported(body: msgspec.Struct, no_ops: NoOps, *, path: str = "") -> None:
    """Raises `RequestError` naming the first field of `body` that asks for what is not supported."""
    for name, accepted in no_ops.items():
        value = getattr(body, name)
        if value is None or value in accepted:
            continue
        param = f"{path}{name}"
        if not accepted:
            here = named_here(name, [field for field in body.__struct_encode_fields__ if field not in no_ops])
            fix = "is not supported by this server. Leave it out." if here is None else f"is called '{here}' here."
            raise RequestError(
                f"Unsupported parameter: '{param}' {fix}",
                param=param,
                code="unsupported_parameter",
            )
        allowed = " or ".join(msgspec.json.encode(value).decode() for value in accepted)
        raise RequestError(
            f"Unsupported value: this server supports only {allowed} for '{param}'. Leave it out or send that.",
            param=param,
            code="unsupported_value",
        )
