"""One stack of compose.yaml for docker/verify.py: how it is started, asked and removed."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

NAME: Final = "pagefall-verify"
"""The project: what belongs to it is removed at the end."""
MODEL: Final = "SmolLM2-135M-Instruct"
_REQUEST_SECONDS: Final = 180.0
_PORTS: Final = ("PAGEFALL_PORT", "PAGEFALL_ROUTER_PORT", "PAGEFALL_GPU_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")

_INSIDE: Final = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), {"Content-Type": "application/json"})
sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=180).read())
"""
"""Run in a container whose port is not published: posts standard input to the URL."""


def prompt(text: str) -> dict[str, Any]:
    """A request whose prompt, of some 400 tokens: the store is asked for 256 and more, begins with `text`."""
    facts = " ".join(f"Fact {number}: river {number * 7} is {number * 13} km long." for number in range(24))
    return {"model": MODEL, "prompt": f"{text}. {facts}", "max_tokens": 8, "temperature": 0}


def tokens_by_tier(answer: dict[str, Any]) -> dict[str, int]:
    tiers: dict[str, int] = answer["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]
    return tiers


def breaker_states(stack: Stack) -> list[str]:
    """The states that the store's breaker says it is in: one."""
    return re.findall(r'pagefall_storage_breaker_state\{state="(\w+)"\} 1', stack.get("/metrics").decode())


class Stack:
    """`environment` is what compose.yaml's variables are taken from: .env.example's values, and free ports."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._compose = _compose_command()
        lines = (repository / ".env.example").read_text().splitlines()
        defaults = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        images = {name: value for name, value in os.environ.items() if name.endswith("_IMAGE")}
        ports = dict(zip(_PORTS, map(str, _free_ports(len(_PORTS))), strict=True))
        # A .env of the user's is not to matter. One thread: several servers start here, on a machine that may be busy.
        own = {"COMPOSE_PROFILES": "", "OMP_NUM_THREADS": "1"}
        self.environment = os.environ | defaults | images | ports | own
        self.address = f"127.0.0.1:{ports['PAGEFALL_PORT']}"

    def compose(self, *words: str) -> str:
        """Its output. Raises `RuntimeError` with the end of it."""
        return self._run([*self._compose, "-p", NAME, *words])

    def try_compose(self, *words: str) -> bool:
        """Whether it succeeds."""
        try:
            self.compose(*words)
        except RuntimeError:
            return False
        return True

    def docker(self, *words: str) -> str:
        return self._run(["docker", *words])

    def container(self, service: str) -> str:
        """The id of its container, one that has ended included."""
        names = ("--filter", f"label=com.docker.compose.project={NAME}")
        of_service = ("--filter", f"label=com.docker.compose.service={service}")
        found = self.docker("ps", "-aq", *names, *of_service).split()
        assert len(found) == 1, f"{service} has {len(found)} containers"
        return found[0]

    def inspect(self, service: str, template: str) -> str:
        return self.docker("inspect", "-f", template, self.container(service)).strip()

    def inspect_image(self, image: str, template: str) -> str:
        return self.docker("image", "inspect", "-f", template, image).strip()

    def is_healthy(self, service: str) -> bool:
        """Raises `RuntimeError` with its last words where it does not run."""
        state = json.loads(self.inspect(service, "{{json .State}}"))
        if state["Status"] not in ("running", "created"):
            last = self.docker("logs", "--tail", "3", self.container(service))
            raise RuntimeError(f"{service} is {state['Status']}: {last}")
        return bool(state.get("Health", {}).get("Status") == "healthy")

    def execute(self, service: str, *command: str, given: bytes | None = None) -> str:
        """What `command` says in the service's container; `given` is its standard input."""
        return self._run(["docker", "exec", "-i", self.container(service), *command], given=given)

    def get(self, path: str) -> bytes:
        return _open(f"http://{self.address}{path}")

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of the published server. Raises `OSError` for any status that is no success."""
        return _parsed(_open(f"http://{self.address}/v1/completions", body))

    def ask_inside(self, service: str, body: dict[str, Any]) -> dict[str, Any]:
        """The same of a service whose port is not published."""
        return _parsed(self._post_inside(service, "/v1/completions", body))

    def ask_router(self, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The answer through the router, and which worker it says it is of."""
        url = f"http://127.0.0.1:{self.environment['PAGEFALL_ROUTER_PORT']}/v1/completions"
        with urllib.request.urlopen(_request(url, body), timeout=_REQUEST_SECONDS) as answer:
            return _parsed(answer.read()), answer.headers["x-pagefall-worker"]

    def flush(self) -> None:
        """Device and host forget what they have cached; the store does not."""
        _open(f"http://{self.address}/flush_cache?tiers=device,host", {})

    def flush_inside(self, service: str) -> None:
        self._post_inside(service, "/flush_cache?tiers=device,host", {})

    def stream(self, body: dict[str, Any]) -> Iterator[str]:
        """The events of a streamed answer. Raises `AssertionError` where the stream ends without `[DONE]`."""
        url = f"http://{self.address}/v1/completions"
        with urllib.request.urlopen(_request(url, body | {"stream": True}), timeout=_REQUEST_SECONDS) as answer:
            for line in answer:
                event = line.decode().strip()
                if event == "data: [DONE]":
                    return
                if event:
                    yield event
        raise AssertionError("the stream ended before its end")

    def prometheus(self, path: str) -> Any:
        """`data` of what its API says. Empty lists while it does not answer would hide failures: `OSError` instead."""
        return json.loads(_open(f"http://127.0.0.1:{self.environment['PROMETHEUS_PORT']}/api/v1/{path}"))["data"]

    def dashboard_title(self) -> str:
        """Of the provisioned dashboard, as Grafana shows it to everyone."""
        dashboard = json.loads((self._repository / "docker/grafana/dashboards/pagefall.json").read_text())
        url = f"http://127.0.0.1:{self.environment['GRAFANA_PORT']}/api/dashboards/uid/{dashboard['uid']}"
        return str(json.loads(_open(url))["dashboard"]["title"])

    def remove(self) -> None:
        """Containers, volumes and network of the project. The image stays, for the next time."""
        profiles = [word for name in ("grafana", "s3", "cluster") for word in ("--profile", name)]
        self.compose(*profiles, "down", "--volumes", "--timeout", "10", "--remove-orphans")

    def _post_inside(self, service: str, path: str, body: dict[str, Any]) -> bytes:
        command = ("python", "-c", _INSIDE, f"http://127.0.0.1:30000{path}")
        return self.execute(service, *command, given=json.dumps(body).encode()).encode()

    def _run(self, command: list[str], given: bytes | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self._repository,
            env=self.environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            end = (done.stderr or done.stdout).decode(errors="replace")[-600:].strip()
            raise RuntimeError(f"{' '.join(command[:6])}: status {done.returncode}: {end}")
        return done.stdout.decode(errors="replace")


def _compose_command() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        try:
            if not subprocess.run([*command, "version"], capture_output=True, check=False).returncode:
                return command
        except FileNotFoundError:
            continue
    raise SystemExit("docker compose is missing: install Docker with its compose plug-in, or docker-compose 1.29")


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _request(url: str, body: dict[str, Any] | None) -> urllib.request.Request:
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(url, data, {"Content-Type": "application/json"})


def _open(url: str, body: dict[str, Any] | None = None) -> bytes:
    try:
        with urllib.request.urlopen(_request(url, body), timeout=_REQUEST_SECONDS) as answer:
            content: bytes = answer.read()
            return content
    except http.client.HTTPException as error:
        raise ConnectionError(f"{url}: {error!r}") from error


def _parsed(content: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(content)
    return answer
