"""docker/Dockerfile, without Docker: what it promises can be read from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tests.deployment_files import DOCKER, DRAIN_SECONDS, REPOSITORY, Instruction, dockerfile, parsed, pyproject

from pagefall.config import ServeConfig

INSTRUCTIONS: Final = dockerfile()


def of(name: str, stage: str | None = None) -> list[Instruction]:
    return [each for each in INSTRUCTIONS if each.name == name and stage in (None, each.stage)]


def argument(name: str) -> str:
    [value] = {each.value.split("=", 1)[1] for each in of("ARG") if each.value.startswith(f"{name}=")}
    return value


def test_it_needs_no_frontend_from_an_image_registry() -> None:
    assert "syntax=" not in (DOCKER / "Dockerfile").read_text().splitlines()[0]
    assert not [each for each in INSTRUCTIONS if "<<" in each.value or "--link" in each.value]


def test_the_image_runs_as_a_numbered_user_who_is_not_root() -> None:
    [user] = of("USER")
    number, group = user.value.split(":")
    assert user.stage == "runtime"
    assert int(number) > 0
    assert int(group) > 0
    assert INSTRUCTIONS.index(user) > INSTRUCTIONS.index(of("RUN", "runtime")[-1])


def test_the_versions_are_those_of_the_project() -> None:
    project = pyproject()["project"]
    assert argument("PAGEFALL_VERSION") == project["version"]
    [torch] = [each for each in map(Requirement, project["dependencies"]) if each.name == "torch"]
    assert argument("TORCH_VERSION") in torch.specifier
    python = argument("PYTHON_IMAGE").removeprefix("python:").split("-")[0]
    assert python in SpecifierSet(project["requires-python"])


def test_a_change_of_the_sources_installs_no_dependency_anew() -> None:
    for stage in ("base", "requirements", "dependencies"):
        for copy in of("COPY", stage):
            assert "service" not in copy.value
            assert "storage_backends" not in copy.value
    [inherited] = [each for each in of("FROM") if each.stage == "dependencies"]
    assert inherited.value.startswith("base ")
    last_layers = [each for each in INSTRUCTIONS if each.stage == "runtime" and each.name in ("COPY", "RUN")][-3:]
    assert last_layers[0].value == "--from=dependencies /opt/venv /opt/venv"
    assert "from=package" in last_layers[1].value


def test_the_requirements_are_those_of_the_project(tmp_path: Path) -> None:
    [run] = of("RUN", "requirements")
    (tmp_path / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())
    script = run.value.replace("'/", f"'{tmp_path}/").replace("python -c", f"{sys.executable} -c")
    subprocess.run(["sh", "-c", script], cwd=tmp_path, check=True, timeout=60)
    project = pyproject()["project"]
    assert (tmp_path / "requirements.txt").read_text().split("\n") == project["dependencies"]
    assert (tmp_path / "embedded.txt").read_text().split("\n") == project["optional-dependencies"]["embedded"]


def test_every_installation_from_an_index_takes_the_settings_of_pip_as_secrets() -> None:
    installing = [each for each in of("RUN") if re.search(r"\bpip\b.* (install|wheel) ", each.value)]
    from_an_index = [each for each in installing if "--no-index" not in each.value]
    assert (len(installing), len(from_an_index)) == (4, 3)
    for each in from_an_index:
        assert "--mount=type=secret,id=pip_conf" in each.value
        assert "--mount=type=secret,id=ca_bundle" in each.value
        assert "--mount=type=cache,target=/root/.cache/pip" in each.value


def test_what_apt_downloads_is_removed_in_the_same_layer() -> None:
    for each in of("RUN"):
        if "apt-get install" in each.value:
            assert "--no-install-recommends" in each.value
            assert "rm -rf /var/lib/apt/lists/*" in each.value


def test_what_is_copied_is_there_and_is_sent_to_the_engine() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert "*" in ignored
    copied = [word for each in of("COPY") if not each.value.startswith("--from") for word in each.value.split()[:-1]]
    assert sorted(set(copied)) == sorted(sent)
    for path in sent:
        assert (REPOSITORY / path).exists(), path


def test_an_accelerator_that_does_not_exist_is_refused() -> None:
    [run] = [each for each in of("RUN", "dependencies") if "ACCELERATOR" in each.value]
    script = run.value[run.value.index("case ") : run.value.index("esac") + len("esac")]
    said = {}
    for name in ("cpu", "cuda", "tpu"):
        program = f'ACCELERATOR={name} TORCH_VERSION=1 TORCH_CPU_INDEX=http://x; {script} && echo "$@"'
        said[name] = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False)
    assert said["cpu"].stdout.strip() == "--no-deps --extra-index-url http://x torch==1+cpu"
    assert said["cuda"].stdout.strip() == "torch===1"
    assert said["tpu"].returncode == 2
    assert "pass cpu or cuda" in said["tpu"].stderr


def test_signals_reach_the_server_and_its_first_command_is_one_it_takes() -> None:
    [entry], [command] = of("ENTRYPOINT"), of("CMD")
    assert json.loads(entry.value) == ["tini", "--", "pagefall"]
    config = parsed(json.loads(command.value))
    assert isinstance(config, ServeConfig)
    assert config.http.host == "0.0.0.0"
    [port] = of("EXPOSE")
    assert config.http.port == int(port.value)


def test_models_and_pages_are_in_volumes() -> None:
    [volumes] = of("VOLUME")
    environment = dict(word.split("=", 1) for each in of("ENV") for word in each.value.split())
    assert environment["PAGEFALL_CACHE_DIR"] in json.loads(volumes.value)
    assert environment["PAGEFALL_STORAGE_DIR"] in json.loads(volumes.value)
    assert environment["HF_HOME"].startswith(environment["PAGEFALL_CACHE_DIR"])


def test_the_health_check_waits_for_a_first_start() -> None:
    [check] = of("HEALTHCHECK")
    assert "--start-period=300s" in check.value
    assert DRAIN_SECONDS < 60, "compose.yaml and the manifests wait for so long"


@contextmanager
def health_that_answers(status: int) -> Iterator[int]:
    """The port of a server whose /health has that status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else HTTPStatus.NOT_FOUND)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def health_of(port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", str(DOCKER / "healthcheck.py")]
    environment = {"PAGEFALL_HEALTH_PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1)])
def test_a_server_is_healthy_when_it_says_so(status: int, expected: int) -> None:
    with health_that_answers(status) as port:
        done = health_of(port)
    assert done.returncode == expected
    assert done.stdout == f"/health answers {status}\n"


def test_a_server_that_is_not_there_is_not_healthy() -> None:
    done = health_of(1)
    assert done.returncode == 1
    assert "no answer" in done.stderr
