"""compose.yaml, docker/ and what else a deployment is made of, read for tests. No Docker is needed."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml  # type: ignore[import-untyped]

from pagefall.app import _LAST_TRANSFERS_SECONDS, _LEAVING_SECONDS, _WRITING_GRACE_SECONDS
from pagefall.cli.router import parse_router
from pagefall.cli.serve import parse_serve
from pagefall.config import HttpConfig, ServeConfig
from pagefall.router.config import RouterConfig
from pagefall_storage.config import parse_config
from pagefall_storage.file import FileConfig
from pagefall_storage.redis_config import RedisConfig
from pagefall_storage.registry import member_configs
from pagefall_storage.s3_config import S3Config

REPOSITORY: Final = Path(__file__).parents[1]
DOCKER: Final = REPOSITORY / "docker"
STORES_IN_THE_CONTAINER: Final = "/etc/pagefall/stores"
LIMITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "kb": 2**10, "mb": 2**20, "gb": 2**30, "mi": 2**20, "gi": 2**30}

DRAIN_SECONDS: Final = (
    HttpConfig().shutdown_grace_seconds + _WRITING_GRACE_SECONDS + _LAST_TRANSFERS_SECONDS + _LEAVING_SECONDS
)
"""The longest that a server with default flags takes from SIGTERM to its end."""

_STORE_CONFIGS: Final[dict[str, type[msgspec.Struct]]] = {"file": FileConfig, "redis": RedisConfig, "s3": S3Config}


class Instruction(NamedTuple):
    """One of a Dockerfile. `stage` is the name of the stage that it is in, empty before the first."""

    stage: str
    name: str
    value: str


def dockerfile() -> list[Instruction]:
    """docker/Dockerfile's, without comments, each on one line."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    found: list[Instruction] = []
    stage = ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, value = line.split(None, 1)
        if name == "FROM":
            stage = value.split(" AS ")[1]
        found.append(Instruction(stage, name, value.strip()))
    return found


def pyproject() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def compose(**variables: str) -> dict[str, Any]:
    """compose.yaml with its variables replaced by their defaults, or by `variables`, as compose does it."""
    document: dict[str, Any] = yaml.safe_load(interpolated((REPOSITORY / "compose.yaml").read_text(), variables))
    return document


def interpolated(text: str, variables: dict[str, str]) -> str:
    """Knows `${NAME}`, `${NAME:-default}` and `${NAME-default}`. Any other `$` stays, and is for a test to find."""

    def value(match: re.Match[str]) -> str:
        name, kind, default = match["name"], match["kind"], match["default"] or ""
        given = variables.get(name)
        return default if given is None or (kind == ":-" and not given) else given

    return re.sub(r"\$\{(?P<name>\w+)(?:(?P<kind>:?-)(?P<default>[^}]*))?\}", value, text)


def example_environment() -> dict[str, str]:
    """What .env.example sets."""
    lines = (REPOSITORY / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def kubernetes() -> dict[tuple[str, str], dict[str, Any]]:
    """The manifests' documents, by kind and name, kustomization.yaml apart."""
    documents = [
        document
        for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for document in yaml.safe_load_all(path.read_text())
    ]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def parsed(command: list[str]) -> ServeConfig | RouterConfig:
    """What the program makes of its command line in a container. Raises `ConfigError`."""
    here = [word.replace(STORES_IN_THE_CONTAINER, str(DOCKER / "stores")) for word in command]
    match here:
        case ["serve", *flags]:
            return parse_serve(flags, {})
        case ["router", *flags]:
            return parse_router(flags, {})
    raise AssertionError(f"neither a server nor a router: {command}")


def check_store(config: ServeConfig) -> None:
    """Raises `StorageConfigError` where the store's settings could never be used."""
    tiers = config.tiers
    assert tiers.hicache_storage_backend is not None
    extra = json.loads(tiers.hicache_storage_backend_extra_config or "{}")
    for name, settings in member_configs(tiers.hicache_storage_backend, extra):
        parse_config(settings, _STORE_CONFIGS[name], where=name)


def num_bytes(text: str) -> int:
    """Of `1536m`, `1gb`, `6Gi`."""
    match = re.fullmatch(r"(\d+)(\w+)", text)
    assert match is not None, text
    return int(match[1]) * LIMITS[match[2].lower()]


def num_seconds(text: str) -> int:
    """Of `60s`."""
    assert text.endswith("s"), text
    return int(text.removesuffix("s"))


def words(command: str | list[str]) -> list[str]:
    """Of a `command:` of compose, in either form."""
    return shlex.split(command) if isinstance(command, str) else command
