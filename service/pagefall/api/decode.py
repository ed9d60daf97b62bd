"""Request bodies become validated values, or a 400 that names the field and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Final, TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import Request

from pagefall.api.allowed_values import allowed_values
from pagefall.api.open_fields import check_unknown
from pagefall.errors import RequestError

Wire = TypeVar("Wire", bound=msgspec.Struct)
Parsed = TypeVar("Parsed")

_INLINE_BYTES: Final = 16 * 1024
"""Bodies up to this size are decoded and checked within a millisecond, even one of 470 messages (measured)."""

_PATH: Final = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`$")


async def parse_body(
    request: Request, wire_type: type[Wire], build: Callable[[Wire], Parsed], *, max_body_bytes: int
) -> Parsed:
    """Reads the body, decodes it as `wire_type` and makes of it what `build` returns; long ones in a worker thread.

    Raises `RequestError`, and `ClientDisconnect` if the body never arrives.
    """
    _check_headers(request)
    body = await read_body(request, max_body_bytes)

    def parse() -> Parsed:
        wire = decode_body(body, wire_type)
        try:
            return build(wire)
        except RecursionError as error:  # what does not recurse names its field before it comes to this
            raise _too_deep() from error

    return parse() if len(body) <= _INLINE_BYTES else await anyio.to_thread.run_sync(parse)


def decode_body(body: bytes, wire_type: type[Wire]) -> Wire:
    """Decodes JSON strictly: `NaN`, lone surrogates and invalid UTF-8 are `RequestError`s, and so are unknown fields
    where `wire_type` forbids them; elsewhere see `open_fields`. Of a key that comes twice the last one counts.
    """
    try:
        decoded = msgspec.json.decode(body, type=wire_type)
        if not wire_type.__struct_config__.forbid_unknown_fields:
            check_unknown(body, wire_type)
        return decoded
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), wire_type) from error
    except msgspec.DecodeError as error:
        raise RequestError(
            f"We could not parse the JSON body of your request: {error}. Send a JSON object in UTF-8.",
            code="invalid_json",
        ) from error
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> RequestError:
    return RequestError("The JSON body of your request is nested too deeply.", code="invalid_json")


def _check_headers(request: Request) -> None:
    """Bodies are JSON, as they are. (A page of another origin may send every other type without asking first.)"""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise RequestError(
            f"Unsupported content type: {media_type[:100]!r}. Send JSON, with 'Content-Type: application/json'.",
            status=415,
            code="unsupported_content_type",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RequestError(
            f"Unsupported content encoding: {encoding[:100]!r}. Send the body as it is, without 'Content-Encoding'.",
            status=415,
            code="unsupported_content_encoding",
        )


async def read_body(request: Request, max_body_bytes: int) -> bytes:
    """Raises `RequestError` (413), and `ClientDisconnect` if the body never arrives."""
    too_large = RequestError(
        f"The body of your request is larger than {max_body_bytes} bytes.", status=413, code="request_too_large"
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_body_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body_bytes:
            raise too_large
    return bytes(body)


def _invalid_value(message: str, wire_type: type[msgspec.Struct]) -> RequestError:
    """Msgspec's `Expected ..., got ... - at `$.path`` in OpenAI's words."""
    path = ""
    if found := _PATH.search(message):
        path, message = found["path"], message[: found.start()]
    if found := _UNKNOWN.match(message):
        name = f"{path}.{found['name']}" if path else found["name"]
        near = [] if path else difflib.get_close_matches(name[:100], wire_type.__struct_fields__, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        return RequestError(
            f"Unrecognized request argument supplied: {name[:200]}.{hint}", param=name[:200], code="unknown_parameter"
        )
    if found := _MISSING.match(message):
        name = f"{path}.{found['name']}" if path else found["name"]
        return RequestError(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    param = path.removesuffix("[...]") or None
    subject = f"Invalid value for '{param}'" if param else "Invalid body of your request"
    reason = message[:1].lower() + message[1:]
    allowed = allowed_values(wire_type, path) if message.startswith("Invalid ") else ()
    hint = f" Allowed: {', '.join(map(repr, allowed))}." if allowed else ""
    return RequestError(
        f"{subject}: {reason}.{hint}", param=param, code="invalid_type" if ", got " in message else "invalid_value"
    )
