"""`pagefall doctor`: asks a running server for its diagnosis and prints it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import httpx
import msgspec

from pagefall.cli.doctor_flags import DOCTOR_FLAGS, DoctorConfig
from pagefall.cli.doctor_text import render
from pagefall.cli.parser import build_config, parse_arguments
from pagefall.errors import ConfigError, PagefallError
from pagefall.insight.diagnosis.report import Diagnosis

_TIMEOUT = httpx.Timeout(120, connect=10)


def doctor(argv: Sequence[str]) -> int:
    """Raises `ConfigError` for flags that cannot be used, `PagefallError` where the server gives no diagnosis."""
    config: DoctorConfig = build_config(DOCTOR_FLAGS, DoctorConfig, parse_arguments(DOCTOR_FLAGS, argv, os.environ))
    diagnosis = ask(config)
    sys.stdout.write(as_json(diagnosis) if config.json else render(diagnosis))
    return 0


def as_json(diagnosis: Diagnosis) -> str:
    """As the server sends it, in lines."""
    return msgspec.json.format(msgspec.json.encode(diagnosis)).decode() + "\n"


def ask(config: DoctorConfig, *, transport: httpx.BaseTransport | None = None) -> Diagnosis:
    """Raises `PagefallError` with what the server says, or why it says nothing."""
    url = config.url.rstrip("/").removesuffix("/v1")
    headers = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
    wanted = {"last": config.last, "seconds": config.seconds}
    query = {name: str(value) for name, value in wanted.items() if value is not None}
    try:
        with httpx.Client(timeout=_TIMEOUT, headers=headers, transport=transport) as client:
            response = client.get(f"{url}/cache/diagnose", params=query)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigError(f"--url: {config.url}: {error}") from error
    except httpx.HTTPError as error:
        raise PagefallError(f"{url}: {error or type(error).__name__}; is the server running there? (--url)") from error
    if response.is_error:
        raise PagefallError(f"{url}: status {response.status_code}: {_message(response)}")
    try:
        return msgspec.json.decode(response.content, type=Diagnosis)
    except msgspec.DecodeError as error:
        raise PagefallError(
            f"{url}/cache/diagnose is no diagnosis: {error}; is that a Pagefall of this version?"
        ) from error


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return response.text[:200]
