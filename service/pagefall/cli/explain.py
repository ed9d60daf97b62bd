"""`pagefall explain`: a running server is asked why a request's prompt was not cached."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from pagefall.api.errors import ErrorBody
from pagefall.api.explanations import RequestsAnswer
from pagefall.cli import explain_report
from pagefall.cli.flags import Flag, FlagTable, Group
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.errors import PagefallError
from pagefall.insight.explanation import Explanation

T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 30.0


class ExplainConfig(msgspec.Struct, frozen=True, kw_only=True):
    url: str = "http://127.0.0.1:30000"
    api_key: str | None = None
    limit: int = 20
    json: bool = False


EXPLAIN_FLAGS: Final = FlagTable(
    program="pagefall explain [REQUEST_ID]",
    summary="Why a request's prompt was not cached, or not all of it. REQUEST_ID is the id of an answer, or the "
    "x-request-id of a request; without it the last requests are listed.",
    groups=(
        Group(
            "Flags",
            "",
            ExplainConfig,
            (
                Flag("url", "the server to ask", "URL"),
                Flag("api-key", "its key, the admin key where it has one", "KEY", environ="PAGEFALL_API_KEY"),
                Flag("limit", "how many requests are listed", minimum=1, maximum=1000),
                Flag("json", "print the server's answer as it is"),
            ),
        ),
    ),
)


def explain(argv: Sequence[str]) -> int:
    """Prints the explanation of the request named first or last in `argv`, or a list of requests.

    Raises `ConfigError` for flags that cannot be used, `PagefallError` where the server does not answer, or not so.
    """
    request_id, flags = _split(argv)
    config: ExplainConfig = build_config(
        EXPLAIN_FLAGS, ExplainConfig, parse_arguments(EXPLAIN_FLAGS, flags, os.environ)
    )
    if request_id is None:
        body = _get(config, f"/cache/requests?limit={config.limit}")
        text = _pretty(body) if config.json else explain_report.table(_decoded(body, RequestsAnswer, config))
    else:
        body = _get(config, f"/cache/explain/{quote(request_id)}")
        text = _pretty(body) if config.json else explain_report.report(_decoded(body, Explanation, config))
    sys.stdout.write(text)
    return 0


def _split(argv: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The id before or after the flags, and these. A word after a flag without `=` is the flag's, unless that takes
    none.
    """
    if argv and not argv[0].startswith("-"):
        return argv[0], argv[1:]
    before = argv[-2] if len(argv) > 1 else "--json"
    if argv and not argv[-1].startswith("-") and (before == "--json" or "=" in before or not before.startswith("-")):
        return argv[-1], argv[:-1]
    return None, argv


def _get(config: ExplainConfig, path: str) -> bytes:
    url = config.url.rstrip("/").removesuffix("/v1")
    headers = {} if config.api_key is None else {"authorization": f"Bearer {config.api_key}"}
    try:
        response = httpx.get(url + path, headers=headers, timeout=_TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PagefallError(f"{url}: {error or type(error).__name__}; name a running server with --url") from error
    if response.is_success:
        return response.content
    try:
        message = msgspec.json.decode(response.content, type=ErrorBody).error.message
    except msgspec.MsgspecError:
        message = f"status {response.status_code}; is this a Pagefall server?"
    raise PagefallError(f"{url}: {message}")


def _decoded(body: bytes, answer: type[T], config: ExplainConfig) -> T:
    try:
        return msgspec.json.decode(body, type=answer)
    except msgspec.MsgspecError as error:
        raise PagefallError(f"{config.url}: an answer of another version of Pagefall, or of none: {error}") from error


def _pretty(body: bytes) -> str:
    return msgspec.json.format(body).decode() + "\n"
