"""OpenAI's fields that Pagefall knows and does not support, and the values of them that change nothing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pagefall.errors import RequestError

NoOps = Mapping[str, tuple[object, ...]]
"""For each unsupported field, the values that ask for nothing. Null always does."""


def refuse_unsupported(body: msgspec.Struct, no_ops: NoOps, *, path: str = "") -> None:
    """Raises `RequestError` naming the first field of `body` that asks for what is not supported."""
    for name, accepted in no_ops.items():
        value = getattr(body, name)
        if value is None or value in accepted:
            continue
        param = f"{path}{name}"
        if not accepted:
            raise RequestError(
                f"Unsupported parameter: '{param}' is not supported by this server. Leave it out.",
                param=param,
                code="unsupported_parameter",
            )
        allowed = " or ".join(msgspec.json.encode(value).decode() for value in accepted)
        raise RequestError(
            f"Unsupported value: this server supports only {allowed} for '{param}'. Leave it out or send that.",
            param=param,
            code="unsupported_value",
        )
